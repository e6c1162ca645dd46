"""The reference's lineage: who made what, from what, and what it costs to bring a storage back.

Part of the specification in play.py. The engine counts and caches these; here each is found by a
new walk.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from coop._C import Options
from coop.trace.trace import Op as Instruction
from reference.arena import Block


@dataclass(eq=False, slots=True)
class Storage:
    number: int
    bytes: int
    producer: "Op | None" = None
    """None: a source, nothing can recompute it."""
    consumers: "list[Op]" = field(default_factory=list)
    """The ops that read it, the newest first."""
    block: Block | None = None
    held: bool = False
    driver_refers: bool = False
    """It is the old version of a storage that an op overwrites. False again when that op is
    recorded."""
    last_access: float = 0.0
    pins: int = 0
    """Must stay resident, may be moved."""
    locks: int = 0
    """Must stay where it is."""
    wanted: int = 0
    """How many ops that wait to run again read it; the walk's own goals count once more."""
    versions: int = 0
    """How often it was overwritten in place."""
    component: "Component | None" = None
    page: bool = False
    """A copy of its bytes is in the tier."""
    in_transit: bool = False
    """A transfer is under way."""
    swap_cost: float = inf
    """The price of swapping it out and in, from the engine's events. Infinite: it cannot be
    swapped."""
    idle: float = 0.0
    """Its idle time, from the engine's events."""
    split_off: bool = False
    """It is the old version of a storage that was overwritten, and no op has used it since."""
    fetched: bool = False
    """It was read ahead, and not used since."""

    @property
    def absent(self) -> bool:
        return self.block is None

    @property
    def evicted(self) -> bool:
        """Neither resident nor in the tier: it has to be recomputed."""
        return self.block is None and not self.page

    @property
    def unused(self) -> bool:
        return not (self.held or self.driver_refers or self.consumers or self.pins or self.locks or self.wanted)

    @property
    def missed(self) -> bool:
        """A held storage that is evicted is made from it, through evicted storages only."""
        return any(storage.held for storage in evicted_descendants(self))

    @property
    def needed(self) -> bool:
        """Held, or missed."""
        return self.held or self.missed

    @property
    def missing(self) -> bool:
        return self.evicted and self.needed

    @property
    def droppable(self) -> bool:
        """Evicting it costs nothing: it is neither held, wanted nor missed."""
        return self.producer is not None and not self.wanted and not self.needed

    @property
    def need(self) -> int:
        """Bytes needed to bring it back."""
        return self.bytes if self.page or not self.producer else self.producer.need

    @property
    def movable(self) -> bool:
        return self.block is not None and not self.locks and not self.in_transit

    def evictable(self, wanted_too: bool = True) -> bool:
        can = self.movable and not self.pins and (self.producer or self.swap_cost < inf)
        return bool(can) and (wanted_too or not self.wanted)


@dataclass(eq=False, slots=True)
class Op:
    """A recorded call. Its first output is the new version of its first input if it works in
    place."""

    instruction: Instruction
    cost: float
    inputs: list[Storage]
    outputs: list[Storage | None]
    """None: forgotten, or a source now."""
    in_place: bool
    bytes: int
    """Of all outputs, forgotten ones too."""
    depth: int
    """Ops on the longest path from a source, when it was recorded."""
    need: int = 0
    """Bytes needed to run it again, found by the last walk that it was part of."""
    waiting: bool = False

    def made(self) -> Iterator[Storage]:
        return (output for output in self.outputs if output)

    def cost_from_scratch(self) -> float:
        """The cost of this op and, if it works in place, of the ops before it on the same bytes."""
        before = self.inputs[0].producer if self.in_place else None
        return self.cost + before.cost_from_scratch() if before else self.cost


@dataclass(eq=False, slots=True)
class Component:
    """A set of evicted storages that are connected through each other, and the sum of their costs.
    If a storage comes back, its cost is subtracted, but the others stay joined (DTR's e-hat). An
    op's cost is counted once for each evicted output.
    """

    cost: float
    members: list[Storage]


def children(storage: Storage) -> Iterator[Storage]:
    return (output for op in storage.consumers for output in op.made())


def evicted_descendants(storage: Storage) -> list[Storage]:
    """All evicted storages that are reached through evicted storages; depth first, the last found
    first."""
    found: list[Storage] = []
    order: list[Storage] = []

    def find(start: Storage) -> list[Storage]:
        fresh: list[Storage] = []
        for child in children(start):
            if child.evicted and child not in found:
                found.append(child)
                fresh.append(child)
        return fresh

    stack = find(storage)
    while stack:
        order.append(stack.pop())
        stack += find(order[-1])
    return order


def evicted_ancestors(op: Op) -> list[Op]:
    """The ops that make the evicted inputs of this one, their evicted inputs, and so on; depth
    first, the last found first."""
    found: list[Storage] = []
    order: list[Op] = []

    def find(start: Op) -> list[Storage]:
        fresh = [storage for storage in start.inputs if storage.evicted and storage not in found]
        found.extend(fresh)
        return fresh

    stack = find(op)
    while stack:
        producer = stack.pop().producer
        assert producer
        if producer not in order:
            order.append(producer)
            stack += find(producer)
    return order


class Lineage:
    def __init__(self, options: Options, forget: Callable[[Storage], None]) -> None:
        self.options = options
        self.forget = forget
        self.model = options.cost.name
        self.storages: list[Storage] = []
        """All of them, resident or absent."""
        self.dying: deque[Op] = deque()
        """Ops whose outputs are all forgotten, in the order in which that happened. They are swept
        later."""
        self._numbers = 0

    def make_storage(self, size: int) -> Storage:
        self._numbers += 1
        self.storages.append(Storage(self._numbers, size))
        return self.storages[-1]

    def make_op(
        self,
        instruction: Instruction,
        cost: float,
        inputs: Iterable[Storage],
        outputs: list[Storage],
        in_place: bool,
    ) -> Op:
        inputs = list(inputs)
        depth = max((storage.producer.depth + 1 for storage in inputs if storage.producer), default=0)
        size = sum(output.bytes for output in outputs)
        op = Op(instruction, cost, inputs, list(outputs), in_place, size, depth)
        for storage in inputs:
            storage.consumers.insert(0, op)
        for output in outputs:
            output.producer = op
        return op

    def records(self) -> set[Op]:
        """All recorded ops, dying ones included until they are swept."""
        made = {storage.producer for storage in self.storages if storage.producer}
        return made | set(self.dying)

    # --- storages come and go ------------------------------------------------------------------------------------------

    def split(self, storage: Storage) -> Storage:
        """Makes the old version of a storage that is overwritten. It takes over the recipe and the
        consumers."""
        old = self.make_storage(storage.bytes)
        old.producer, storage.producer = storage.producer, None
        old.consumers, storage.consumers = storage.consumers, []
        old.last_access = storage.last_access
        old.versions = storage.versions
        storage.versions += 1
        for op in old.consumers:
            op.inputs[op.inputs.index(storage)] = old
        if old.producer:
            old.producer.outputs[old.producer.outputs.index(storage)] = old
        return old

    def commit(self, storage: Storage) -> None:
        """Makes it a source. Its op dies if that was its last output."""
        op, storage.producer = storage.producer, None
        if op:
            op.outputs[op.outputs.index(storage)] = None
            if not any(op.made()):
                self.dying.append(op)

    def reconsider(self, storage: Storage) -> None:
        """Forgets the storage if nobody outside and no op refers to it."""
        assert storage in self.storages, "forgotten already"
        if storage.unused:
            self.leave_component(storage)
            self.forget(storage)
            self.commit(storage)
            self.storages.remove(storage)

    def sweep(self, portion: int) -> None:
        while portion and self.dying:
            portion -= 1
            op = self.dying.popleft()
            for storage in op.inputs:
                storage.consumers.remove(op)
                self.reconsider(storage)

    # --- what eviction costs -------------------------------------------------------------------------------------------

    def join_component(self, storage: Storage) -> None:
        """It has been evicted: joins it with the components of its neighbours, the inputs of its op
        first."""
        if self.model == "own":
            return
        assert storage.producer
        storage.component = Component(storage.producer.cost, [storage])
        for neighbour in [*storage.producer.inputs, *children(storage)]:
            mine, other = storage.component, neighbour.component
            if other and other is not mine:
                mine.cost += other.cost
                mine.members += other.members
                for member in other.members:
                    member.component = mine

    def leave_component(self, storage: Storage) -> None:
        """It has come back, or is forgotten."""
        component, storage.component = storage.component, None
        if component:
            assert storage.producer
            component.members.remove(storage)
            component.cost = max(0.0, component.cost - storage.producer.cost)

    def projected_cost(self, storage: Storage) -> float:
        """What it would cost if it were evicted now: its own op, and the ops of the evicted
        storages around it. These run to bring it back, or become more expensive to bring back. With
        `needed_only`, an evicted storage that was made from it counts only if it is needed:
        otherwise its op never runs again. Sums are added in the order of the walks, so that they
        agree to the last bit."""
        op = storage.producer
        assert op
        if self.model == "own":
            return op.cost
        if self.model == "exact":
            above, below = evicted_ancestors(op), evicted_descendants(storage)
            if self.options.needed_only:
                below = [child for child in below if child.needed]
            # The limit counts ops upwards and storages downwards.
            if len(above) + len(below) <= self.options.exact_limit:
                around = 0.0
                counted: list[Op] = []
                for other in [*above, *(child.producer for child in below)]:
                    if other and other not in counted:
                        counted.append(other)
                        around += other.cost
                return op.cost + around
        around = 0.0
        components: list[Component] = []
        for neighbour in [*op.inputs, *children(storage)]:
            if neighbour.component and neighbour.component not in components:
                components.append(neighbour.component)
                around += neighbour.component.cost
        return op.cost + around

    # --- who needs what ------------------------------------------------------------------------------------------------

    def held_dependents(self, source: Storage) -> list[Storage]:
        """All held, pinned or locked storages that are made from it through storages that are none
        of these."""
        met: list[Storage] = []
        found: list[Storage] = []
        stack = [source]
        while stack:
            for child in children(stack.pop()):
                if child in met:
                    continue
                met.append(child)
                (found if child.held or child.pins or child.locks else stack).append(child)
        return found

    def trail(self, storage: Storage) -> list[Op]:
        """The ops behind it through storages that nobody holds, its own included."""
        ops = [storage.producer] if storage.producer else []
        for op in ops:  # including those that are added meanwhile
            dead = [made.producer for made in op.inputs if made.producer and not made.held]
            ops += [producer for at, producer in enumerate(dead) if producer not in ops and producer not in dead[:at]]
        return ops

    def missing(self, goals: Iterable[Storage]) -> list[Op]:
        """The ops that recompute the evicted goals, in an order in which they can run."""
        ops: list[Op] = []
        for goal in goals:
            if goal.evicted:
                assert goal.producer
                ops += [op for op in [goal.producer, *evicted_ancestors(goal.producer)] if op not in ops]
        return sorted(ops, key=lambda op: op.depth)

    def find_needs(self, ops: list[Op]) -> None:
        """Sets the bytes that each op needs at once, if its absent inputs come back one after the
        other and stay. The input that needs the most comes first (Sethi and Ullman's numbers)."""
        for op in ops:
            absent = [(storage.need, storage.bytes) for storage in op.inputs if storage.absent]
            kept = most = 0
            for need, size in sorted(absent, reverse=True):
                most = max(most, kept + need)
                kept += size
            op.need = max(most, kept + op.bytes)
