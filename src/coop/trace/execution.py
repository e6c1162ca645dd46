"""PyTorch's own execution traces, read as a trace.

`torch.profiler.ExecutionTraceObserver` writes the calls of a run and their tensors; a kineto trace
of the same run says how long the calls took. So a step of stock PyTorch on any GPU can be studied
here. The ops and their names are those that the recorder would see (execution_graph.py); what they
do to storages follows its rules (recorder.py). An op costs the time of its work on the GPU if it
has any, else its own time on the CPU. Without a kineto trace, the cost comes from a device model,
or is 0.

The file leaves some things open. They are decided as follows:

1. Storages are known by address, and addresses are reused. If an op's result lies where none of
   its arguments does, it is a new storage, and the one that was there before has died. If a
   storage is read with more bytes than it was made with, it is a new one too, a source.
2. A storage has as many bytes as its tensors reach.
3. Frees are not recorded. A storage from before the trace is held to its end, unless its address
   is reused. All others are released after their last use.
4. A storage from before the trace that is held to the end still exists in the following step.
5. Only one device is considered: the one with the most bytes, but a CPU only if there is no other.
   Ops that read tensors of another device cannot be run again.
6. Scratch is what is allocated inside an op and is none of its results, from its first to its last
   use.
7. Tensors that stand for a number (`x * 2`) and tensors without elements are left out.

Not known: what is held longer than it is used (a saved activation, a gradient until `zero_grad`);
the state that an optimizer makes in its first step, so record a later one; allocations that
kernels make without an op; storages from elsewhere with the address of one that has died and at
most its size; kernels of `torch.compile`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from coop.trace import kineto
from coop.trace.device import Device
from coop.trace.execution_graph import Node, Seen, read_ops, seen_in
from coop.trace.recorder import STATISTICS, Schema
from coop.trace.trace import FRESH, Instruction, Op, Output, Release, Source, Trace, TraceError

Cost = Callable[[Node], int]


def read(path: str | Path, kineto_path: str | Path | None = None, device: Device | None = None) -> Trace:
    """Raises TraceError if the files hold nothing that can be read, and OSError if they cannot be
    opened."""
    nodes = read_ops(path)
    about: dict[str, Any] = {"from": "execution trace"}
    if kineto_path is not None:
        durations = kineto.read(kineto_path)
        _of_one_run(nodes, durations, path, kineto_path)
        cost, costs = _measured(durations), "measured"
        about["ops without a duration"] = sum(node.function not in durations.host for node in nodes)
    elif device is not None:
        cost, costs = _modelled(device), device.name
        about |= device.about
    else:
        cost, costs = (lambda _: 0), "no costs"
    where = _device_of(nodes)
    name = Path(path).name.removesuffix(".gz").removesuffix(".json")
    try:
        return Trace(_Writer(cost).write(_calls(nodes, where)), name, costs, about | {"device": where})
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None


@dataclass(slots=True, eq=False)
class _Life:
    """A storage, from when an address first holds it until it no longer does."""

    bytes: int
    source: bool
    first: int
    """The numbers of the first and of the last call that used it."""
    last: int
    late: bool
    """Another storage was at its address before."""
    replaced: bool = False
    """Another storage was at its address afterwards."""
    read_in: set[str] = field(default_factory=set)
    written_in: set[str] = field(default_factory=set)
    current: int = -1
    held: list[int] = field(default_factory=list)
    views: dict[Any, int] = field(default_factory=dict)

    @property
    def stays(self) -> bool:
        return self.source and not self.late and not self.replaced

    @property
    def kind(self) -> str:
        """The kind of source, as far as its use tells."""
        if "optimizer" in self.written_in:
            return "parameter" if "forward" in self.read_in else "state"
        if "backward" in self.written_in and "optimizer" in self.read_in:
            return "gradient"
        return "buffer" if self.written_in else "data"


@dataclass(slots=True)
class _Call:
    """An op with the storages that it uses."""

    node: Node
    schema: Schema
    reads: list[tuple[Seen, _Life]] = field(default_factory=list)
    writes: list[tuple[Seen, _Life]] = field(default_factory=list)
    results: list[tuple[Seen, _Life]] = field(default_factory=list)
    statistics: list[tuple[Seen, _Life]] = field(default_factory=list)
    """The statistics that a batch norm updates, in an op of its own."""
    elsewhere: bool = False
    """It reads a tensor of another device."""
    scratch: int = 0


def _calls(nodes: list[Node], device: str) -> list[_Call]:
    schemas: dict[str, Schema] = {}
    lives: dict[int, _Life] = {}
    """The latest life at each address."""
    made: set[tuple[int, int]] = set()
    calls: list[_Call] = []

    def meet(seen: Seen, number: int, fresh: bool) -> _Life:
        life = lives.get(seen.storage)
        if life is None or fresh or (not life.source and seen.extent > life.bytes):
            if life is not None:
                life.replaced = True
            life = lives[seen.storage] = _Life(0, not fresh, number, number, life is not None)
        life.bytes, life.last = max(life.bytes, seen.extent), number
        return life

    for node in nodes:
        schema = schemas.get(node.schema)
        if schema is None:
            schema = schemas[node.schema] = _parsed(node.schema)
        if schema.ignored or schema.name == "aten::detach_":  # it writes no bytes
            continue
        call, number = _Call(node, schema), len(calls)
        updates = schema.batch_norm and _trains(schema, node.inputs)
        given: set[int] = set()
        for name, value in zip(schema.names, node.inputs, strict=False):
            for seen in seen_in(value):
                unknown = (seen.tensor, seen.storage) not in made and name not in schema.written
                is_number = seen.like_a_number and unknown
                if seen.device != device:
                    call.elsewhere |= not is_number and not schema.shape_only
                elif not schema.shape_only and not is_number:
                    given.add(seen.storage)
                    met = seen, meet(seen, number, False)
                    met[1].read_in.add(node.phase)
                    if updates and name in STATISTICS:
                        call.statistics.append(met)
                        met[1].written_in.add(node.phase)
                        continue
                    call.reads.append(met)
                    if name in schema.written and not schema.batch_norm:
                        call.writes.append(met)
                        met[1].written_in.add(node.phase)
        for seen in seen_in(node.outputs):
            made.add((seen.tensor, seen.storage))
            if seen.device == device:
                call.results.append((seen, meet(seen, number, seen.storage not in given)))
                given.add(seen.storage)
        if call.reads or call.results:
            call.scratch = _scratch(node, given, device)
            calls.append(call)
    return calls


class _Writer:
    """Turns calls into instructions, with the recorder's rules for versions and views."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._instructions: list[Instruction] = []
        self._next = 0

    def write(self, calls: list[_Call]) -> list[Instruction]:
        met = [dict.fromkeys(life for _, life in [*call.reads, *call.statistics, *call.results]) for call in calls]
        sources = [life for life in dict.fromkeys(life for lives in met for life in lives) if life.source]
        entered: dict[int, _Life] = {}
        """The storages that enter, by the number of the instruction."""
        for life in sources:
            if not life.late:
                entered[len(self._instructions)] = life
                self._adopt(life)
        for number, (call, lives) in enumerate(zip(calls, met, strict=True)):
            for life in lives:
                if life.source and life.current < 0:
                    entered[len(self._instructions)] = life
                    self._adopt(life)
            self._op(call)
            if call.statistics:
                self._update(call)
            for life in lives:
                if life.last == number and not life.stays:
                    self._release(life.held)
                    life.held = []
        for number, life in entered.items():
            source = self._instructions[number]
            if life.stays and isinstance(source, Source):
                self._instructions[number] = replace(source, carries=life.current)
        return self._instructions

    def _op(self, call: _Call) -> None:
        inputs: dict[int, int] = {}
        outputs: list[Output] = []
        renewed: dict[_Life, int] = {}
        """For each storage, the index of the input that is overwritten."""

        def index(seen: Seen, life: _Life) -> int:
            number = life.views.get(seen.geometry, life.current)
            return inputs.setdefault(number, len(inputs))

        given = set()
        for seen, life in call.reads:
            index(seen, life)
            given.add((seen.tensor, seen.geometry))
        for seen, life in call.writes:
            if life not in renewed:
                renewed[life] = index(seen, life)
        old = {life: life.held for life in renewed}
        of = {life: index(seen, life) for seen, life in reversed(call.reads)}
        for life, alias in renewed.items():
            outputs.append(self._version(life, alias))
        fresh = False
        for seen, life in call.results:
            if life.current < 0:
                life.current = self._number()
                life.held = [life.current]
                outputs.append(Output(life.current, life.bytes))
                of[life] = FRESH
                fresh = True
            elif life not in renewed and of.get(life, FRESH) != FRESH and (seen.tensor, seen.geometry) not in given:
                number = life.views[seen.geometry] = self._number()
                life.held.append(number)
                outputs.append(Output(number, 0, of[life]))
        if outputs or not call.results:
            view = bool(outputs) and not fresh and not renewed
            self._instructions.append(
                Op(
                    call.schema.name,
                    tuple(inputs),
                    tuple(outputs),
                    0 if view else self._cost(call.node),
                    call.node.phase,
                    tuple(dict.fromkeys(renewed.values())),
                    call.scratch,
                    call.schema.replayable and not call.schema.in_doubt and not call.elsewhere,
                )
            )
        for held in old.values():
            self._release(held)

    def _update(self, call: _Call) -> None:
        lives = list(dict.fromkeys(life for _, life in call.statistics))
        old = [life.held for life in lives]
        inputs = tuple(life.current for life in lives)
        outputs = tuple(self._version(life, index) for index, life in enumerate(lives))
        name = f"{call.schema.name}:statistics"
        self._instructions.append(Op(name, inputs, outputs, 0, call.node.phase, tuple(range(len(lives)))))
        for held in old:
            self._release(held)

    def _version(self, life: _Life, alias: int) -> Output:
        """A new version, through which all other views are read from now on."""
        life.current = self._number()
        life.held, life.views = [life.current], {}
        return Output(life.current, 0, alias)

    def _adopt(self, life: _Life) -> None:
        life.current = self._number()
        life.held = [life.current]
        self._instructions.append(Source(life.current, life.bytes, life.kind))

    def _release(self, tensors: list[int]) -> None:
        self._instructions.extend(map(Release, tensors))

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _parsed(schema: str) -> Schema:
    try:
        return Schema(torch._C.parse_schema(schema))
    except (IndexError, RuntimeError, TypeError, ValueError):  # whatever PyTorch's parser says
        raise TraceError(f"an op has a schema that cannot be read: {schema}") from None


def _trains(schema: Schema, arguments: list[Any]) -> bool:
    if schema.training is None:
        return True
    index = schema.names.index(schema.training)
    if index >= len(arguments):
        raise TraceError(f"{schema.name} has {len(arguments)} arguments, and {schema.training} is none of them")
    return bool(arguments[index])


def _device_of(nodes: list[Node]) -> str:
    """The device with the most bytes, but a CPU only if there is no other."""
    storages = {
        (seen.device, seen.storage): seen.extent for node in nodes for seen in seen_in([node.inputs, node.outputs])
    }
    totals: Counter[str] = Counter()
    for (device, _), size in storages.items():
        totals[device] += size
    return max(totals, key=lambda device: (device != "cpu", totals[device]), default="cpu")


def _scratch(node: Node, own: set[int], device: str) -> int:
    """The most bytes needed at once inside an op, besides its arguments and results."""
    spans: dict[int, tuple[int, int, int]] = {}
    below = list(node.walk())[1:]
    for position, inner in enumerate(below):
        for seen in seen_in(inner.outputs):
            if seen.device == device and seen.storage not in own:
                spans.setdefault(seen.storage, (position, position, seen.extent))
        for seen in seen_in([inner.inputs, inner.outputs]):
            if seen.storage in spans:
                first, _, size = spans[seen.storage]
                spans[seen.storage] = first, position, max(size, seen.extent)
    changes = [0] * (len(below) + 1)
    for first, last, size in spans.values():
        changes[first] += size
        changes[last + 1] -= size
    return max(accumulate(changes))


def _of_one_run(nodes: list[Node], durations: kineto.Durations, path: str | Path, other: str | Path) -> None:
    names = [(node.name, durations.names.get(node.function)) for node in nodes]
    if any(found is not None and found != name for name, found in names) or not any(found for _, found in names):
        raise TraceError(f"{path} and {other} are not of the same run: their ops differ")


def _measured(durations: kineto.Durations) -> Cost:
    def cost(node: Node) -> int:
        launched = [durations.device.get(inner.function, 0) for inner in node.walk() if inner.function]
        return sum(launched) or durations.host.get(node.function, 0)

    return cost


def _modelled(device: Device) -> Cost:
    """Costs from a device model. The op is called with tensors that have shapes but no bytes."""

    def on_meta(value: Any) -> Any:
        if isinstance(value, Seen):
            return value.on_meta()
        return [on_meta(each) for each in value] if isinstance(value, list) else value

    def cost(node: Node) -> int:
        namespace, _, name = node.schema.split("(")[0].partition("::")
        packet, _, overload = name.partition(".")
        try:
            op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        except AttributeError:
            return 0  # an op that is not installed here
        try:
            arguments = list(zip(op._schema.arguments, map(on_meta, node.inputs), strict=False))
            positional = [value for argument, value in arguments if not argument.kwarg_only]
            named = {argument.name: value for argument, value in arguments if argument.kwarg_only}
            results = [on_meta(value) for value in node.outputs]
            return device.cost(op, positional, named, results[0] if len(results) == 1 else results, False)
        except Exception as error:  # PyTorch's formulas raise anything for wrong arguments
            why = str(error).splitlines()
            raise TraceError(
                f"what {node.name} costs cannot be told from its arguments: {why[0] if why else ''}"
            ) from None

    return cost
