"""The graph: what a planner needs to know of a step, and nothing else.

Nodes are the step's ops in the order in which the program runs them. Values are the bytes that
they make and read. Ops of a trace that only make views are left out, and views stand for their
storage. An op that overwrites a storage makes a new value in the place of the old one.

Parameters and other sources are constant memory, even if ops write to them. An op that has read a
source can be run again only until that source is overwritten (`Node.last`). A value that was made
from the source and that the program still holds then has to be in memory, as if it were read. It
could never be recomputed later (rule 5 of the engine).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from coop.trace.trace import FRESH, Hold, Op, Release, Source, Trace, storages_of

NONE = -1


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    cost: int
    """Nanoseconds."""
    inputs: tuple[int, ...]
    """Values, each once."""
    outputs: tuple[int, ...]
    over: tuple[int, ...] = ()
    """For each output: the value whose bytes it takes over, or NONE. Empty: none does."""
    scratch: int = 0
    last: int | None = None
    """It can be run again until the first run of that node. None: always. Its own number: never."""
    op: int = NONE
    """Which of the trace's ops it is."""

    def overwritten(self) -> Iterable[int]:
        return (value for value in self.over if value != NONE)


@dataclass(frozen=True, slots=True)
class Value:
    bytes: int
    node: int
    """The node that makes it."""
    users: tuple[int, ...]
    """Nodes that read it, in order."""
    kept: bool = False
    """It has to be in memory at the end."""


@dataclass(frozen=True)
class Graph:
    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    base: tuple[int, ...]
    """Bytes of sources, while each node runs for the first time and before it; and one more, at
    the end."""
    name: str = ""
    about: dict[str, str] = field(default_factory=dict, compare=False)
    trace: Trace | None = field(default=None, compare=False, repr=False)
    """The trace that it was made from, if there is one."""

    @property
    def cost(self) -> int:
        """Of all nodes, each once. Nanoseconds."""
        return sum(node.cost for node in self.nodes)

    def repeatable(self, node: int, at: int) -> bool:
        """Whether the node can be run again before the first run of another."""
        last = self.nodes[node].last
        return last is None or at <= last

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each value."""
        return tuple(value.bytes for value in self.values)

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes whose values it reads."""
        return tuple(tuple(dict.fromkeys(self.values[v].node for v in node.inputs)) for node in self.nodes)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.nodes]
        for child, parents in enumerate(self.parents):
            for parent in parents:
                found[parent].append(child)
        return tuple(map(tuple, found))

    @cached_property
    def overwriter(self) -> dict[int, int]:
        """For values that are overwritten, the node that does it."""
        return {value: number for number, node in enumerate(self.nodes) for value in node.overwritten()}

    @cached_property
    def fingerprint(self) -> str:
        """The same for graphs of the same structure and sizes. Costs do not matter: they differ
        from one recording to the next."""
        digest = hashlib.sha256()
        for node in self.nodes:
            digest.update(repr((node.name, node.inputs, node.outputs, node.over, node.last)).encode())
        for value in self.values:
            digest.update(repr((value.bytes, value.kept)).encode())
        return digest.hexdigest()[:16]


def until(graph: Graph, value: int) -> int:
    """The last node that reads a value; the number of nodes if it outlives the step; the one that
    makes it if nobody reads it."""
    found = graph.values[value]
    return len(graph.nodes) if found.kept else found.users[-1] if found.users else found.node


def make(
    costs: Sequence[int],
    sizes: Sequence[int],
    edges: Iterable[tuple[int, int]],
    *,
    kept: Iterable[int] = (),
    base: int = 0,
    name: str = "",
) -> Graph:
    """A graph in which each node makes one value. `edges`: (a node, a node that reads what it
    makes)."""
    inputs: list[list[int]] = [[] for _ in costs]
    users: list[list[int]] = [[] for _ in costs]
    for made, reader in sorted(set(edges)):
        if not 0 <= made < reader < len(costs):
            raise ValueError(f"an edge from {made} to {reader} does not go forward among {len(costs)} nodes")
        inputs[reader].append(made)
        users[made].append(reader)
    wanted = set(kept)
    nodes = (Node(str(i), cost, tuple(inputs[i]), (i,)) for i, cost in enumerate(costs))
    values = (Value(size, i, tuple(users[i]), i in wanted) for i, size in enumerate(sizes))
    return Graph(tuple(nodes), tuple(values), (base,) * (len(costs) + 1), name)


def from_trace(trace: Trace) -> Graph:
    """Sizes are rounded up to the trace's alignment, as in the arena."""
    return _Builder(trace).graph()


class _Builder:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.storage_of, self.sizes = storages_of(trace.instructions)
        self.references = [0] * len(self.sizes)
        self.holds: dict[int, int] = {}
        """For storages that are no sources: the value that is in them now."""
        self.readers: dict[int, list[int]] = {}
        """For sources: the nodes that have read it as it is now."""
        self.nodes: list[Node] = []
        self.last: dict[int, int] = {}
        self.values: list[tuple[int, int]] = []
        """Bytes, and the node that makes it."""
        self.users: list[list[int]] = []
        self.made_from: list[int] = []
        """For each value: the sources without which it cannot be recomputed, a bit for each."""
        self.gradients: set[int] = set()
        """Values that backward has made."""
        self.base = [0]

    def graph(self) -> Graph:
        op = 0
        for instruction in self.trace.instructions:
            match instruction:
                case Source(tensor):
                    self.readers[self.storage_of[tensor]] = []
                    self.hold(tensor, 1)
                case Hold(tensor):
                    self.hold(tensor, 1)
                case Release(tensor):
                    self.hold(tensor, -1)
                case Op():
                    self.add(instruction, op)
                    op += 1
        kept = {value for storage, value in self.holds.items() if self.references[storage]}
        return Graph(
            tuple(replace(node, last=self.last.get(i)) for i, node in enumerate(self.nodes)),
            tuple(Value(size, node, tuple(self.users[i]), i in kept) for i, (size, node) in enumerate(self.values)),
            tuple(self.base),
            self.trace.name,
            {"device": self.trace.device},
            self.trace,
        )

    def rounded(self, size: int) -> int:
        alignment = self.trace.alignment
        return -(-max(size, 1) // alignment) * alignment

    def hold(self, tensor: int, count: int) -> None:
        storage = self.storage_of[tensor]
        before = self.references[storage]
        self.references[storage] += count
        if storage in self.holds and not before + count:
            self.released(self.holds[storage])
        if storage in self.readers and bool(before) != bool(before + count):
            self.base[-1] += self.rounded(self.sizes[storage]) * (1 if count > 0 else -1)
            if count < 0:  # it is not kept for the values that were made from it
                for reader in self.readers[storage]:
                    self.last.setdefault(reader, len(self.nodes) - 1)

    def released(self, value: int) -> None:
        """A gradient cannot be recomputed: it stays while the program holds it, read or not."""
        last = self.nodes[-1]
        if value not in self.gradients or value in last.inputs or value in last.outputs:
            return
        self.nodes[-1] = replace(last, inputs=(*last.inputs, value))
        self.users[value].append(len(self.nodes) - 1)

    def add(self, op: Op, number: int) -> None:
        for output in op.outputs:
            self.hold(output.tensor, 1)
        fresh = [output for output in op.outputs if output.alias == FRESH]
        if op.outputs and not fresh and not op.writes:
            return  # nothing but views
        here = len(self.nodes)
        read = dict.fromkeys(self.storage_of[tensor] for tensor in op.inputs)
        written = dict.fromkeys(self.storage_of[op.inputs[index]] for index in op.writes)
        inputs = [self.holds[storage] for storage in read if storage in self.holds]
        overwritten = sum(1 << storage for storage in written if self.readers.get(storage))
        for storage in written:
            for reader in self.readers.get(storage, ()):
                self.last.setdefault(reader, here)
        if overwritten:
            for storage, value in self.holds.items():
                if self.references[storage] and self.made_from[value] & overwritten:
                    self.made_from[value] = 0
                    if value not in inputs:
                        inputs.append(value)
        for storage in read:
            if storage in self.readers:
                self.readers[storage].append(here)
        if not op.replayable or any(storage in self.readers for storage in written):
            self.last[here] = here

        made_from = sum(1 << storage for storage in read if storage in self.readers)
        for value in inputs:
            self.users[value].append(here)
            made_from |= self.made_from[value]

        over = [self.holds[storage] for storage in written if storage in self.holds] + [NONE] * len(fresh)
        made = [storage for storage in written if storage in self.holds] + [self.storage_of[o.tensor] for o in fresh]
        outputs = []
        for storage in made:
            self.holds[storage] = len(self.values)
            outputs.append(len(self.values))
            self.values.append((self.rounded(self.sizes[storage]), here))
            self.users.append([])
            if op.phase == "backward":
                self.gradients.add(outputs[-1])
            self.made_from.append(made_from if op.phase == "forward" else 0)  # gradients are sources for the engine
        scratch = self.rounded(op.scratch) if op.scratch else 0
        replaces = tuple(over) if any(value != NONE for value in over) else ()
        self.nodes.append(Node(op.name, op.cost, tuple(inputs), tuple(outputs), replaces, scratch, None, number))
        self.base.append(self.base[-1])
