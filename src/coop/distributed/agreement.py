"""`coop.agree`: ranks that run out of budget together.

If one rank runs out of budget in the forward pass and goes on with a smaller batch, the others have
to do the same: they would wait in the backward pass for gradients that never come. At the end of
the block, every rank tells whether it has failed. If one has, all raise.

The ranks talk through a gloo group of their own, so that nothing is paired with a collective of the
program. What they say lies outside of the arena and is made when the block begins: it needs no
memory when there is none.

Not for a block in which ranks wait for each other. When one of them fails there, the others do not
come to the end: the rank that failed raises its own error after `patience`, and it cannot go on.
"""

import atexit
import contextlib
import ctypes
import json
import sys
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import numpy
import torch
import torch.distributed as dist

from coop import _C
from coop.distributed.out_of_step import in_step
from coop.distributed.place import place_now
from coop.distributed.stores import programs_store
from coop.errors import OutOfBudget

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup, Store, Work

_OUT_OF_BUDGET, _OUT_OF_MEMORY, _OTHER = 1, 2, 3
"""How a rank has failed. The last weighs more: whoever ran out must not take it for the same."""
_KIND = 1 << 32
"""A flag is a kind, times this, and the group's size less the rank: the first rank wins."""
_TEXT = 4096
"""Bytes for what the others are told."""


class agree(contextlib.ContextDecorator):
    """All ranks of a group leave the block in the same way.

        with coop.agree():
            loss = model(batch)
        loss.backward()

    If a rank raises OutOfBudget in the block, it does so at the block's end on all ranks: its own
    error on the rank that failed; on the others an OutOfBudget with its text and numbers, whose
    `rank` says whose they are. For any other exception, the others raise a RuntimeError that names
    it. Without a process group, or with one rank, it does nothing. It is a decorator, too.

    `group`: the ranks that have to agree; all if None. `patience`: seconds for which a rank that
    failed waits for the others to come to the end of the block.
    """

    def __init__(self, group: "ProcessGroup | None" = None, *, patience: float = 60.0) -> None:
        self._group = group
        self._patience = patience
        self._channel: _Channel | None = None
        self._where: _Where = ("", 0)
        self._before = 0

    def _recreate_cm(self) -> Self:
        return type(self)(self._group, patience=self._patience)

    def __enter__(self) -> Self:
        self._channel = _channel_of(self._group)
        self._where = _caller()
        self._before = _C.collectives()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        channel, self._channel = self._channel, None
        if channel is None or (error is not None and not isinstance(error, Exception)):
            return  # Ctrl-C and SystemExit: the process is about to end, and the others see that
        issued = _C.collectives() - self._before
        if error is None:
            channel.tell_success(self._where, issued)
        else:
            channel.tell_failure(error, self._where, issued, self._patience)


_Where = tuple[str, int]
"""A block: its file and line."""


def _caller() -> _Where:
    """Of the block that is being entered, or of the call of a decorated function."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class _Channel:
    """How the ranks of one group tell each other whether they have failed."""

    def __init__(self, group: "ProcessGroup", store: "Store") -> None:
        self._fewest: dict[_Where, int] = {}
        """Collectives of the program in a block, when it has succeeded."""
        self._broken = ""
        self._rank, self._size = group.rank(), group.size()
        gloo = torch._C._distributed_c10d.ProcessGroupGloo
        self._gloo: Any = gloo(store, self._rank, self._size, timeout=_timeout_of(group))
        self._flag = numpy.zeros(1, numpy.int64)
        self._text = numpy.zeros(_TEXT, numpy.uint8)
        self._tensors = torch.from_numpy(self._flag), torch.from_numpy(self._text)

    def require_sound(self) -> None:
        if self._broken:
            raise RuntimeError(self._broken)

    def tell_success(self, where: _Where, issued: int) -> None:
        """Returns if all have succeeded."""
        self._fewest[where] = min(issued, self._fewest.get(where, issued))
        flag = self._reduce(0, None)
        failed = self._hear(flag) if flag else {}
        in_step()
        if failed:
            raise _error_of_another(flag // _KIND, failed)

    def tell_failure(self, error: Exception, where: _Where, issued: int, patience: float) -> None:
        """Returns if this rank's own error is the one to raise."""
        kind = _kind_of(error)
        if issued < (fewest := self._fewest.get(where, 0)):
            self._give_up(error, f"the block has {fewest} collectives, and this rank failed after {issued} of them")
            return
        try:
            flag = self._reduce(kind * _KIND + self._size - self._rank, patience)
            failed = self._hear(flag, error)
        except RuntimeError as broken:
            self._give_up(error, f"they did not come to the end of the block within {patience:.0f} s ({broken})")
            return
        in_step()
        if flag // _KIND == _OTHER != kind:
            raise _error_of_another(_OTHER, failed) from error

    def _give_up(self, error: Exception, why: str) -> None:
        self._broken = f"{place_now()} failed inside coop.agree, and the other ranks wait for it elsewhere. Tip: let the program end"
        error.add_note(
            f"The other ranks could not be told: {why}. They wait for this rank elsewhere. Tip: let the program end."
        )

    def _reduce(self, flag: int, patience: float | None) -> int:
        self._flag[0] = flag
        options: Any = torch._C._distributed_c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._wait(self._gloo.allreduce([self._tensors[0]], options), patience)
        return int(self._flag[0])

    def _hear(self, flag: int, own: Exception | None = None) -> dict[str, Any]:
        """What the first of those that failed says of itself."""
        speaker = self._size - flag % _KIND
        if speaker == self._rank and own is not None:
            said = _told(own)
            self._text[:] = 0
            self._text[: len(said)] = numpy.frombuffer(said, numpy.uint8)
        options = torch._C._distributed_c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = speaker, 0
        self._wait(self._gloo.broadcast([self._tensors[1]], options), None)
        failed: dict[str, Any] = json.loads(self._text.tobytes().rstrip(b"\0"))
        return failed

    def _wait(self, work: "Work", patience: float | None) -> None:
        try:
            if patience is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=patience))
        except BaseException:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._gloo))  # its end would wait for the others
            raise


_channels: "WeakKeyDictionary[ProcessGroup, _Channel]" = WeakKeyDictionary()
"""A group ends when the program destroys it: its threads have to end before the interpreter
does."""
atexit.register(_channels.clear)
_made: dict[str, int] = {}
"""Channels so far, by the group's name. Names are used again when all groups are destroyed."""


def _channel_of(group: "ProcessGroup | None") -> _Channel | None:
    """None: nobody has to agree with anybody."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    members = dist.group.WORLD if group is None else group
    if members is None or dist.get_rank(members) < 0 or dist.get_world_size(members) == 1:
        return None
    if members not in _channels:
        name = members.group_name
        _made[name] = _made.get(name, 0) + 1
        _channels[members] = _Channel(members, programs_store(f"coop/agree/{name}/{_made[name]}"))
    channel = _channels[members]
    channel.require_sound()
    return channel


def _timeout_of(group: "ProcessGroup") -> timedelta:
    """That of the group's own backend."""
    for device in ("cpu", "cuda"):
        with contextlib.suppress(RuntimeError, AttributeError):
            return group._get_backend(torch.device(device)).options._timeout
    return dist.distributed_c10d.default_pg_timeout


def _kind_of(error: Exception) -> int:
    if isinstance(error, OutOfBudget):
        return _OUT_OF_BUDGET
    return _OUT_OF_MEMORY if isinstance(error, torch.OutOfMemoryError) else _OTHER


_NUMBERS = ("op", "needed", "budget", "enough", "whole", "program", "rank")


def _told(error: Exception) -> bytes:
    """At most _TEXT bytes."""
    place, text = place_now(), str(error)
    if not isinstance(error, OutOfBudget):
        text = f"{place}: {type(error).__name__}: {text}"
    said: dict[str, Any] = {name: getattr(error, name) for name in _NUMBERS if hasattr(error, name)}
    while len(whole := json.dumps(said | {"text": text}).encode()) > _TEXT:
        text = text[: len(text) - max(1, len(text) // 10)]
    return whole


def _error_of_another(kind: int, failed: dict[str, Any]) -> Exception:
    if kind == _OTHER:
        return RuntimeError(f"another rank failed inside coop.agree: {failed['text']}")
    text = f"another rank ran out of {'budget' if kind == _OUT_OF_BUDGET else 'memory'}: {failed['text']}"
    if kind == _OUT_OF_MEMORY:
        return torch.OutOfMemoryError(text)
    error = OutOfBudget(text)
    for name in _NUMBERS:
        setattr(error, name, failed[name])
    return error
