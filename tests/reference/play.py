"""The specification of Coop's engine in plain Python: a slow, simple simulator, and a referee.

It plays a trace as coop.simulate.Player does, beside the engine's events (event_stream.py), and
must get the same figures and the same end. The engine (csrc/) finds its answers with trees, caches,
counters and bounds. Here each answer is found from scratch, by its definition, and the engine's
next event has to be the same. That holds for the arena, the lineage, the walk, and the choice of
what leaves.

Where the engine may choose, the reference does not choose a second time. It reads what the engine
has done, checks that it is legal, and does the same. That holds for commits between ops, for what
is written and read ahead, for the order in which transfers finish, and for the forecast: how long a
storage is idle, and how long the program will wait for its return. The reference does not judge
when the engine does this, or how well it guesses.

tests/simulate/test_reference.py checks every event on random traces. tests/simulate/test_referee.py
checks that wrong events are refused. The algorithm is:

The arena (arena.py) is one address range, tiled by blocks: free, raw (handed out, not a storage
yet) or holding a storage. A request takes the edge of a hole on its own side: the hole nearest that
end of the arena, or with best fit the smallest. Sources, tiny storages and expensive results go to
the low side; cheap results and passing gradients go to the high side.

The lineage (lineage.py) knows which op made which storage from which inputs. An op's output can be
evicted and recomputed; a source cannot. A storage is forgotten when nobody outside and no recorded
op needs it, an op when all its outputs are forgotten. In-place ops rename: the old version is an
evicted storage with the old recipe, and the new one keeps the block. With copy on write, the old
version keeps the block and the new one moves to a copy.

An op has these steps (this file has the code around an op, engine.py the code inside).
 1. Every storage that needs the old value of a source that the op overwrites comes back and is
    committed: it becomes a source.
 2. Its operands come back and are locked.
 3. Its outputs and its scratch request blocks. If no hole fits, the request makes room (4). If no
    room can be made, memory is packed and the op starts again; then everything but its operands
    leaves and it starts once more. An op that overwrites something does not start again.
 4. Making room: the policy (policy.py) names a run of neighbouring blocks. What is evictable in it
    leaves, and the rest slides to its low edge. This is repeated until the hole is large enough.
    Wanted storages are named only when nothing else is left. If the policy has no answer, Coop's
    window is used, with moves if the switch `rescue` is on.
 5. It is recorded if it can run again and is worth it. That is so unless it is part of a plain
    backward pass, lies too deep, overwrites more than one storage or one that is not recomputable,
    or overwrites something and reads a passing source. Tiny outputs stay sources.
 6. The clock advances by its cost. Then the engine may do work between ops (ahead.py). Two kinds of
    commits (commits.py) are legal. Everything that depends on a source that nobody holds may be
    committed if it is small and resident, so that the source can be forgotten. A storage with too
    many ops behind it for its size may be committed. At most 16 dying records are swept.

When the program drops a recomputable storage that ops have read, it is evicted at once. With
`keep_dead`, and while something held is absent, it stays until its room is needed.

To bring storages back, the walk (walk.py) runs ops again, depth first. It begins with the input
that needs the most bytes, and pins what it has brought back.

With a tier (swap.py) a storage has a second way out: its bytes are written to the tier, and read
back when it returns. It takes the cheaper way; a source has only this one. The engine's events give
the price of swapping and the idle time of each storage, which replaces staleness. Transfers run
ahead of the program. The tier accepts everything and loses nothing.

Scores have double precision, and ties are common: among storages that cost nothing, and among equal
ones. So the rules say which storage wins a tie, and sums are exact or added in a stated order.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from coop._C import Options
from coop.events import Event
from coop.policies import options_for
from coop.simulate.player import THRASH, Simulation, overhead_of, speeds_of
from coop.trace.trace import FRESH, Hold, Op, Release, Source, Trace
from reference.arena import HIGH, LOW, PACKED, Block
from reference.engine import Engine
from reference.event_stream import EventStream
from reference.figures import stats_of
from reference.lineage import Op as Recorded
from reference.lineage import Storage
from reference.walk import ShortageError

T = TypeVar("T")
BY_VALUE = 64
"""Bytes. Sources up to this size are copied into a recipe."""


def play(
    trace: Trace,
    budget: int,
    policy: str,
    events: Sequence[Event],
    peak: int,
    *,
    steps: int = 1,
    limit: float = THRASH,
    alignment: int = 64,
    **switches: Any,
) -> Simulation:
    """Judges the events of Player(trace, alignment).play(budget, policy, events=True, checks=2,
    ...): raises RefereeError at the first that is wrong. Returns the same as it, but for events,
    times on the wall clock and the counts of cached costs. `peak` is the step's own."""
    device = speeds_of(trace) | {"alignment": alignment}
    stream = EventStream(events)
    step = Step(trace, options_for(policy, budget, 0, device | switches), stream)
    step.play(steps, limit)
    if stream.next():
        stream.refuse("nothing has to follow")
    return step.result(peak)


def enough(trace: Trace, alignment: int) -> int:
    """A budget in which nothing has to leave."""
    sizes = [i.bytes for i in trace.instructions if isinstance(i, Source)]
    sizes += [size for op in trace.ops for size in (op.scratch, *(output.bytes for output in op.outputs))]
    return 2 * sum(size + alignment for size in sizes) + alignment


@dataclass(eq=False)
class Home:
    """A storage of the trace: the tensors that view it share it."""

    storage: Storage | None
    """None: it has no bytes, or is no longer held."""
    step: int
    """The last one it belongs to."""
    references: int = 0
    parameter: bool = False
    """It stays a source in later steps, under whatever name."""


@dataclass(eq=False)
class Name:
    """A tensor: what it views, and how many references the program has to it."""

    home: Home
    references: int = 1


class Step:
    """Drives the engine through a trace, as the torch hook does through a program."""

    def __init__(self, trace: Trace, options: Options, stream: EventStream) -> None:
        self.trace = trace
        self.options = options
        self.engine = Engine(options, self.rerun, stream)
        self.step = 0
        self.at = 0
        self.status = "ok"
        self.needed = 0
        self.tensors: dict[int, Name] = {}
        self.last_tensors: dict[int, Name] = {}
        """Tensors of the step before whose names have not been used again."""
        self.carried: dict[int, Home] = {}
        """By source: the storage that it continues from the step before."""
        self.old: Storage | None = None
        """The version that the running op overwrites."""

    def play(self, steps: int, limit: float) -> None:
        total = 0.0
        for op in self.trace.ops:
            total += seconds(op)
        patience = total * (limit - 1)
        try:
            for self.step in range(steps):
                self._begin_step()
                for at, instruction in enumerate(self.trace.instructions):
                    self.at = at
                    self._run(instruction)
                    if self.engine.counts.recompute_seconds > patience * (self.step + 1):
                        self.status = "thrash"
                        return
        except ShortageError as shortage:
            self.status = "thrash" if shortage.in_circles else "out_of_memory"
            self.needed = shortage.needed

    def result(self, peak: int) -> Simulation:
        stats = stats_of(self.engine)
        done = self.status == "ok"
        return Simulation(
            status=self.status,
            overhead=overhead_of(stats) if done else None,
            budget=self.options.budget,
            ratio=self.options.budget / peak if peak else 1.0,
            stats=stats,
            failed=None if done else self.at,
            needed=self.needed,
        )

    def _run(self, instruction: Source | Op | Hold | Release) -> None:
        match instruction:
            case Source():
                self._run_source(instruction)
            case Op():
                self._run_op(instruction)
            case Hold(tensor):
                self._home(tensor).references += 1
                self.tensors[tensor].references += 1
            case Release(tensor):
                self.tensors[tensor].references -= 1
                self._release(self._home(tensor), 1)

    # --- who holds what ------------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        """Sets aside what sources continue from the step before, with one reference for each
        source. The other tensors of that step are released when their names are used again."""
        self.last_tensors, self.tensors = self.tensors, {}
        self.carried = {}
        for source in self.trace.instructions:
            if isinstance(source, Source):
                last = self.last_tensors.get(source.tensor if source.carries is None else source.carries)
                if last and last.home.references:
                    self.carried[source.tensor] = last.home
        for home in self.carried.values():
            home.step = self.step
            home.references = 0
        for home in self.carried.values():
            home.references += 1

    def _home(self, tensor: int) -> Home:
        home = self.tensors[tensor].home
        if not home.references:
            raise ValueError(f"instruction {self.at} uses tensor {tensor}, which nobody holds")
        return home

    def _name(self, tensor: int, home: Home) -> None:
        """A new tensor has one reference. The tensor that had its name in the last step is
        released."""
        home.references += 1
        self.tensors[tensor] = Name(home)
        self._release_last(tensor)

    def _release(self, home: Home, references: int) -> None:
        home.references -= references
        if not home.references and home.storage:
            storage, home.storage = home.storage, None
            self.engine.let_go(storage)

    def _release_last(self, tensor: int) -> None:
        last = self.last_tensors.pop(tensor, None)
        if last and last.home.step != self.step:
            self._release(last.home, last.references)

    def _bind(self, block: Block | None, size: int) -> Home:
        return Home(self.engine.bind(block, size) if block else None, self.step)

    def _run_source(self, source: Source) -> None:
        """A source that is held since the step before has a storage. Any other is new, and goes to
        the low side."""
        if home := self.carried.get(source.tensor):
            home.references -= 1  # the one that was set aside for it
            self._name(source.tensor, home)
            return
        self.engine.side = LOW
        home = self._bind(self._block(source.bytes), source.bytes)
        home.parameter = source.kind == "parameter"
        self._name(source.tensor, home)

    def _block(self, size: int) -> Block | None:
        return self.engine.allocate(size) if size else None

    # --- an op ---------------------------------------------------------------------------------------------------------

    def _run_op(self, op: Op) -> None:
        made: list[Home] = []
        if op.writes or not op.outputs or any(output.alias == FRESH for output in op.outputs):
            made = self._compute(op)
        self.engine.ran(seconds(op))
        for output in op.outputs:
            shared = output.alias != FRESH
            self._name(output.tensor, self._home(op.inputs[output.alias]) if shared else made.pop(0))

    def _storages(self, tensors: list[int]) -> list[Storage]:
        """Each once."""
        storages = [self._home(tensor).storage for tensor in tensors]
        return [s for at, s in enumerate(storages) if s and s not in storages[:at]]

    def _compute(self, op: Op) -> list[Home]:
        operands = self._storages(list(op.inputs))
        written = self._storages([op.inputs[index] for index in op.writes])
        record = not (op.writes and self._reads_what_passes(op))  # before dependents are committed
        try:
            self.engine.before_overwrite(written)
            self.engine.enter(operands)
        except ShortageError:
            for storage in operands:
                self.engine.reconsider(storage)
            raise
        self.engine.swap.overwriting(written)
        try:
            return self._call(op, operands, written, record)
        except ShortageError:
            self._overwritten(written)
            raise
        finally:
            self.engine.leave(operands)

    def _reads_what_passes(self, op: Op) -> bool:
        """Whether it reads a source that is no parameter: a gradient or a batch. A recorded
        in-place op would keep that source while the result is recomputable."""
        homes = [self._home(tensor) for at, tensor in enumerate(op.inputs) if at not in op.writes]
        sources = [home.storage for home in homes if home.storage and not home.storage.producer and not home.parameter]
        return any(source.bytes > BY_VALUE for source in sources)

    def _worth_recording(self, op: Op, operands: list[Storage], written: list[Storage]) -> bool:
        """An op is recorded if it can run again, is not part of a plain backward pass and does not
        lie too deep. It may overwrite one storage, which is recomputable and has few versions."""
        if not op.replayable or not op.outputs or (op.phase == "backward" and not self.options.record_backward):
            return False
        if op.writes and not (
            len(written) == 1 and written[0].producer and written[0].versions < self.options.max_versions
        ):
            return False
        return not self.engine.too_deep(operands)

    def _call(self, op: Op, operands: list[Storage], written: list[Storage], record: bool) -> list[Home]:
        engine, options = self.engine, self.options
        record = record and self._worth_recording(op, operands, written)
        if not options.in_place:
            for storage in written:
                if storage.producer:
                    self._done_with_old()
                    copy = functools.partial(engine.copy_on_write, storage)
                    self.old = self._persistently(copy, operands, again=True)
        passing = op.phase == "backward" and not options.record_backward  # a passing gradient
        size = sum(output.bytes for output in op.outputs) + sum(storage.bytes for storage in written)
        engine.side = HIGH if passing else engine.side_of(seconds(op), size)
        blocks = self._persistently(lambda: self._allocate(op), operands, again=not written)

        target = written[0] if record and written else None
        outputs = [target] if target else []
        homes: list[Home] = []
        for output, block in blocks:
            home = self._bind(block, output)
            homes.append(home)
            if output > options.tiny and home.storage:
                outputs.append(home.storage)
        if not record or not outputs:
            self._overwritten(written)
            return homes
        if target and not self.old:
            self.old = engine.split(target)
        others = [storage for storage in operands if storage is not target]
        inputs = [self.old, *others] if target and self.old else others
        engine.record(op, seconds(op), inputs, outputs, in_place=target is not None)
        self._done_with_old()
        return homes

    def _overwritten(self, written: list[Storage]) -> None:
        """A recomputable storage that has been overwritten is a source now."""
        self.engine.swap.overwriting(written)
        for storage in written:
            if storage.producer:
                self.engine.reconsider(self.engine.split(storage))
        self._done_with_old()

    def _done_with_old(self) -> None:
        old, self.old = self.old, None
        if old:
            self.engine.reconsider(old)

    def _persistently(self, work: Callable[[], T], operands: list[Storage], again: bool) -> T:
        """Work that finds no room is tried again, if it can be: after memory is packed, and after
        everything else has left. The last time, its requests are packed too."""
        for rescue in (self.engine.pack, self.engine.compact, None):
            try:
                return work()
            except ShortageError:
                if not again or not self.options.rescue or not rescue:
                    raise
            for storage in operands:
                self.engine.pin(storage)
            self.engine.leave(operands)
            rescue()
            self.engine.enter(operands)
            for storage in operands:
                self.engine.unpin(storage)
            if rescue == self.engine.compact:
                self.engine.side = PACKED
        raise AssertionError

    def _allocate(self, op: Op) -> list[tuple[int, Block | None]]:
        """The size and block of each fresh output: all or none. Scratch is allocated and freed."""
        blocks: list[tuple[int, Block | None]] = []
        try:
            for output in op.outputs:
                if output.alias == FRESH:
                    blocks.append((output.bytes, self._block(output.bytes)))
            if op.scratch:
                self.engine.free(self.engine.allocate(op.scratch))
        except ShortageError:
            for _, block in blocks:
                if block:
                    self.engine.free(block)
            raise
        return blocks

    def rerun(self, op: Recorded) -> list[Block]:
        """The blocks of the recorded outputs. The others are freed."""
        recorded = []
        for size, block in self._allocate(op.instruction):
            if block and size > self.options.tiny:
                recorded.append(block)
            elif block:
                self.engine.free(block)
        return recorded


def seconds(op: Op) -> float:
    return op.cost * 1e-9
