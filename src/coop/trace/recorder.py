"""The recorder: one step, as the ops below autograd.

A dispatch mode sees every leaf op of forward, backward and optimizer with its tensors. Which
tensors share memory is read from their storages, not from the schema: reshape and `to` sometimes
alias. A weak reference to a storage's Python object ends when the storage itself does, whatever
held it last (a variable, autograd, a module): that is its Release.

The recorded ops differ from the called ones in three ways.

1. A write makes a new version, and from then on every other view of that storage is read through
   it.
2. A batch norm in training updates its running statistics in an op of its own: running it again
   must not update them, and its result does not depend on them.
3. Ops that only ask for a shape (`zeros_like`) have no inputs, because they need no bytes.

Tensors that wrap others (DTensor) run their own ops on what they wrap, and those are recorded. So
are the ops that FSDP's copies are made of, because a live program shows them as well. A
storage that is resized without an op, as FSDP does with gathered parameters, ends, and begins anew
as a source of the new size. Collectives are ops that cannot be run again; see collectives.py.

Scratch is the most that a kernel has allocated at once, minus its results. Not seen: what
libraries allocate without PyTorch, and tensors that other threads manage. Sparse tensors have no
storage and are left out.
"""

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from coop import _C
from coop.trace.collectives import WAITING, composed_of, written_by
from coop.trace.existing import Existing
from coop.trace.resizes import Resizes
from coop.trace.tensors import tensors_in
from coop.trace.trace import FRESH, Instruction, Op, Output, Release, Source

Cost = Callable[[Any, tuple[Any, ...], dict[str, Any], Any, bool, int], int]
"""Returns the cost of a call. Arguments: op, args, kwargs, result, whether it is a view, and the
nanoseconds it took here."""

_SHAPE_ONLY = {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"} | {
    "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
}  # fmt: skip
STATISTICS = ("running_mean", "running_var")
_BATCH_NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"} | {
    "cudnn_batch_norm", "miopen_batch_norm",
}  # fmt: skip


def measured(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, view: bool, nanoseconds: int) -> int:
    """The time that the call took here."""
    return 0 if view else nanoseconds


class Schema:
    """What the schema says of an op, and what has to be known besides."""

    def __init__(self, schema: Any) -> None:
        self.name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        namespace, _, base = schema.name.partition("::")
        self.ignored = namespace in ("prim", "profiler")
        self.replayable = namespace == "aten"  # a custom op may do anything
        self.in_doubt = self.replayable and _C.same_again_in_doubt(self.name)  # it may give other bits the next time
        self.shape_only = self.replayable and base in _SHAPE_ONLY
        self.names = [argument.name for argument in schema.arguments]
        self.written = written_by(schema)
        self.waits = schema.name in WAITING
        self.batch_norm = self.replayable and base in _BATCH_NORMS and STATISTICS[0] in self.names
        self.training = next((name for name in ("training", "train") if name in self.names), None)


@dataclass(slots=True)
class Stored:
    """A storage that is alive."""

    bytes: int
    current: int
    """The tensor that stands for the whole storage. It is held as long as the storage lives; views
    end before."""
    watch: Any
    source: int | None
    """The tensor as which it entered, if no op made it."""
    maker: tuple[int, int] | None = None
    """What made the current version: the number of the op, and the index of the output."""
    views: dict[Any, int] = field(default_factory=dict)
    held: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Call:
    """An op while it is recorded. Inputs and outputs are tensor numbers."""

    inputs: dict[int, int] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    writes: dict[int, int] = field(default_factory=dict)
    """For each address, the version that the op leaves."""
    given: set[int] = field(default_factory=set)
    """The Python objects that it was called with."""
    replaced: list[Stored] = field(default_factory=list)

    def index(self, tensor: int) -> int:
        return self.inputs.setdefault(tensor, len(self.inputs))


class Updates:
    """Knows whether an optimizer is running, and tells when one has ended.

    This is no part of the recorder, because at the end of an update one recorder may follow
    another, and hooks cannot be added there.
    """

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        self.running = 0
        self._ended = ended
        self._hooks: list[Any] = []

    def __enter__(self) -> "Updates":
        self._hooks = [register_optimizer_step_pre_hook(self._begin), register_optimizer_step_post_hook(self._end)]
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: Any) -> None:
        self.running += 1

    def _end(self, *_: Any) -> None:
        self.running -= 1
        if not self.running:
            self._ended()


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what happens while it is active. Tensors are numbered in the order of appearance;
    see recording.py."""

    def __init__(self, updates: "Updates", cost: Cost = measured) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.instructions: list[Instruction] = []
        self.ops: list[Op] = []
        self.storages: dict[int, Stored] = {}
        """The storages that are alive, by address."""
        self._touched: dict[int, None] = {}
        """Sources that an op has read or written, in the order of their first use."""
        self.adopted: dict[int, int] = {}
        """Sources that existed at the beginning, by address."""
        self.existing = Existing()
        self._cost = cost
        self._schemas: dict[Any, Schema] = {}
        self._next = 0
        self._updates = updates
        self._tally = _C.Tally()
        self._resizes = Resizes(self._resized)

    def __enter__(self) -> "Recorder":
        self.existing.find()
        for storage, kind in self.existing.take():
            self.adopted[storage._cdata] = self._adopt(storage, kind).current
        self._tally.listen()
        self._resizes.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._resizes.__exit__()
        self._tally.stop()
        for stored in self.storages.values():
            stored.watch = None
            stored.held = dict.fromkeys(stored.held)  # drops the weak references, not the numbers

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # the wrapper runs its own ops, and they come here
        kwargs = kwargs or {}
        if (composed := composed_of(op)) is not None:
            super().__enter__()  # type: ignore[no-untyped-call]
            try:
                return composed(*args, **kwargs)
            finally:
                super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._tally.begin()
        begin = time.perf_counter_ns()
        result = op(*args, **kwargs)
        nanoseconds = time.perf_counter_ns() - begin
        most = self._tally.most
        schema = self._schemas.get(op)
        if schema is None:
            schema = self._schemas[op] = Schema(op._schema)
        if not schema.ignored:
            self._write_down(op, schema, args, kwargs, result, nanoseconds, most)
        return result

    def _write_down(
        self, op: Any, schema: Schema, args: Any, kwargs: Any, result: Any, nanoseconds: int, most: int
    ) -> None:
        call, number = _Call(), len(self.ops)
        updates = schema.batch_norm and (schema.training is None or self._trains(schema, args, kwargs))
        statistics: list[Tensor] = []
        written: list[tuple[Tensor, int]] = []
        for name, value in [*zip(schema.names, args, strict=False), *kwargs.items()]:
            for tensor in tensors_in(value):
                call.given.add(id(tensor))
                if schema.shape_only:
                    continue
                if updates and name in STATISTICS:
                    statistics.append(tensor)
                elif (read := self._read(call, tensor)) is not None and name in schema.written:
                    written.append((tensor, read))
        if not schema.batch_norm:  # in evaluation it only reads its statistics, though the schema says it writes
            for tensor, read in written:
                self._write(call, tensor, read, number)
        for tensor in tensors_in(result):
            self._give(call, tensor, number)
        if call.outputs or not any(True for _ in tensors_in(result)):
            fresh = any(output.alias == FRESH for output in call.outputs)
            view = bool(call.outputs) and not fresh and not call.writes
            cost = 0 if schema.waits else self._cost(op, args, kwargs, result, view, nanoseconds)
            scratch = max(most - sum(output.bytes for output in call.outputs), 0)
            again = schema.replayable and not (schema.in_doubt and not torch.are_deterministic_algorithms_enabled())
            self._add(schema.name, call, cost, scratch, again)
        if statistics:
            update = _Call()
            for tensor in statistics:
                if (read := self._read(update, tensor)) is not None:
                    self._write(update, tensor, read, len(self.ops))
            self._add(f"{schema.name}:statistics", update, 0, 0, True)

    def _add(self, name: str, call: _Call, cost: int, scratch: int, replayable: bool) -> None:
        inputs = list(call.inputs)
        renewed = set(call.writes.values())
        writes = tuple(dict.fromkeys(output.alias for output in call.outputs if output.tensor in renewed))
        op = Op(name, tuple(inputs), tuple(call.outputs), cost, self._phase(), writes, scratch, replayable)
        self.ops.append(op)
        self.instructions.append(op)
        for address in call.writes:
            stored = self.storages[address]
            for tensor in list(stored.held):
                if tensor != stored.current:
                    self._release(stored, tensor)
        for stored in call.replaced:
            for tensor in list(stored.held):
                self._release(stored, tensor)

    def _read(self, call: _Call, tensor: Tensor) -> int | None:
        """The number of an input; None if it has no storage."""
        address = _address(tensor)
        if address is None:
            return None
        stored = self.storages.get(address)
        if stored is None:  # it came into being without an op: from numpy, a file, another thread
            stored = self._adopt(tensor.untyped_storage(), "data")
        if stored.source is not None:
            self._touched[stored.source] = None
        number = stored.views.get(_geometry(tensor), stored.current)
        call.index(number)
        return number

    def _write(self, call: _Call, tensor: Tensor, read: int, op: int) -> None:
        """Makes a new version of what was read, and so of all views of that storage."""
        storage = tensor.untyped_storage()
        stored = self.storages[storage._cdata]
        if storage._cdata in call.writes or storage.nbytes() != stored.bytes:
            return  # written through another view already; or resized, which makes it a fresh result
        stored.current, stored.maker = self._number(), (op, len(call.outputs))
        stored.views.clear()
        stored.held[stored.current] = None
        call.outputs.append(Output(stored.current, 0, call.index(read)))
        call.writes[storage._cdata] = stored.current

    def _give(self, call: _Call, tensor: Tensor, op: int) -> None:
        """Adds a result: in a storage of its own, or a view of an input's."""
        address = _address(tensor)
        if address is None or address in call.writes:
            return
        stored = self.storages.get(address)
        size = tensor.untyped_storage().nbytes()
        if stored is not None and stored.bytes != size:
            call.replaced.append(self.storages.pop(address))
            stored = None
        if stored is None:
            number = self._number()
            stored = self._keep(tensor.untyped_storage(), number, None)
            stored.maker = (op, len(call.outputs))
            call.outputs.append(Output(number, size))
        elif id(tensor) not in call.given and (stored.maker is None or stored.maker[0] != op):
            # Neither an argument that is passed through nor a second result in the same fresh
            # storage.
            of = next((n for n in call.inputs if n in stored.held), stored.current)
            number, geometry = self._number(), _geometry(tensor)
            call.outputs.append(Output(number, 0, call.index(of)))
            stored.views[geometry] = number
            stored.held[number] = weakref.ref(tensor, lambda _: self._forget(stored, number, geometry))

    def _adopt(self, storage: Any, kind: str) -> Stored:
        number = self._number()
        self.instructions.append(Source(number, storage.nbytes(), kind))
        return self._keep(storage, number, number)

    def _keep(self, storage: Any, number: int, source: int | None) -> Stored:
        address = storage._cdata
        watch = weakref.ref(storage, lambda _: self._die(address))
        stored = self.storages[address] = Stored(storage.nbytes(), number, watch, source)
        stored.held[number] = None
        return stored

    def _die(self, address: int) -> None:
        stored = self.storages.pop(address, None)
        if stored is None:
            return
        for tensor in list(stored.held):
            self._release(stored, tensor)

    def _resized(self, storage: Any) -> None:
        """What it held is gone; what it will hold comes from no op that is known."""
        stored = self.storages.get(storage._cdata)
        if stored is not None and stored.bytes == storage.nbytes():
            return
        self._die(storage._cdata)
        if storage.nbytes():
            self._adopt(storage, "")

    def _forget(self, stored: Stored, tensor: int, geometry: Any) -> None:
        """A view is gone. Its storage may live on."""
        if tensor in stored.held:
            self._release(stored, tensor)
            if stored.views.get(geometry) == tensor:
                del stored.views[geometry]

    def _release(self, stored: Stored, tensor: int) -> None:
        del stored.held[tensor]
        self.instructions.append(Release(tensor))

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def sources(self) -> list[int]:
        """The sources that existed at the beginning and belong to what was recorded, in an order
        that is the same each time."""
        addresses = {tensor: address for address, tensor in self.adopted.items()}
        touched = [addresses[tensor] for tensor in self._touched if tensor in addresses]
        return [self.adopted[address] for address in self.existing.belonging_to(touched)]

    def _phase(self) -> str:
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        return "optimizer" if self._updates.running else "forward"

    @staticmethod
    def _trains(schema: Schema, args: Any, kwargs: Any) -> bool:
        """Whether a batch norm trains."""
        position = schema.names.index(schema.training or "")
        return bool(args[position] if position < len(args) else kwargs.get(schema.training))


def _address(tensor: Tensor) -> int | None:
    if tensor.layout is not torch.strided:
        return None
    address: int = tensor.untyped_storage()._cdata
    return address


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def held_at_end(recorder: Recorder) -> Iterator[int]:
    for stored in recorder.storages.values():
        yield from stored.held
