"""The scope: `budget` and `measure`, and the `Memory` that they give.

One scope is open at a time, on the thread that opened it. Threads that are started inside it take
part; see boundary.py for what happens where tensors meet the world outside of PyTorch's operators.
"""

import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from coop import _C, errors
from coop.boundary import Boundary
from coop.distributed.elastic import record_uncaught
from coop.distributed.out_of_step import OutOfStep
from coop.event_file import EventWriter
from coop.events import Event, Stats
from coop.interrupts import deferred
from coop.live_events import LiveEvents
from coop.machine import machine_bytes
from coop.plan.model.file import read
from coop.plan.model.plan import Plan
from coop.plan.running.follow import planned, refuse_unless_for
from coop.policies import options_for
from coop.sizes import format_bytes, parse_bytes
from coop.tiers import Disk, Host, pages_name, tier_of

_NUMBERS = 64
"""Tensors up to so many bytes never leave: PyTorch reads numbers that are tensors (the 2 in 2 * x)
without an operator, when a dispatch mode is active."""


class Memory:
    """A scope with a budget. Made by `budget` and `measure`; used with `with`, once."""

    def __init__(
        self,
        options: _C.Options,
        events: bool | str | Path = False,
        plan: _C.Planned | None = None,
        tier: "Host | Disk | None" = None,
        policy: str = "coop",
    ) -> None:
        self._options = options
        self._events = events
        self._policy = policy
        self._live: LiveEvents | None = None
        self._plan = plan
        self._tier = tier
        self._state = "new"
        self._thread = 0
        self._boundary = Boundary()
        self._final: Stats | None = None

    def __enter__(self) -> Self:
        if self._state != "new":
            raise RuntimeError("this budget's scope was entered before; make a new one with coop.budget(...)")
        if _C.is_open():
            raise RuntimeError(
                "a coop budget is already in force; budgets do not nest, and there is one for each process"
            )
        try:
            with deferred():
                self._open()
        except BaseException:
            if self._state == "open":
                self._close()
            raise
        return self

    def _open(self) -> None:
        try:
            _C.open(self._options, self._events is not False)
        except MemoryError:
            raise MemoryError(
                f"the system does not give {format_bytes(self._options.budget)} of address space. "
                "Tip: look at `ulimit -v` and at vm.overcommit_memory"
            ) from None
        self._state, self._thread = "open", threading.get_ident()
        if not isinstance(self._events, bool):
            program = Path(sys.argv[0]).name if sys.argv else ""
            self._live = LiveEvents(EventWriter(self._events, self._options, self._policy, program))
        if self._tier is not None:
            self._tier.open()
        elif self._plan is not None:
            _C.swap_to_file(tempfile.gettempdir(), 0, False, pages_name())
        if self._plan is not None:
            _C.follow(self._plan)
        self._boundary.install()
        record_uncaught((errors.OutOfBudget, OutOfStep))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            lost = self._close()
        except KeyboardInterrupt:
            if self._state == "open":  # an interrupt came before it could be deferred
                self._close()
            raise
        if kind is not None:
            return
        if lost:
            warnings.warn(
                f"{lost} tensors were evicted when the budget's scope ended, and there was no room to bring them back, or what "
                "was swapped out is lost: reading them is an error now",
                stacklevel=2,
            )
        if unwritten := self.finish_events():
            warnings.warn(f"{self._events}: {unwritten}", stacklevel=2)

    def _close(self) -> int:
        """Returns how many tensors are lost."""
        if self._state != "open":
            raise RuntimeError(
                "this budget's scope is not open" if self._state == "new" else "this budget's scope has ended"
            )
        if threading.get_ident() != self._thread:
            raise RuntimeError("a budget's scope must be left on the thread that entered it")
        with deferred():
            self._final = self.stats()
            self.finish_events()
            self._state = "closed"
            self._boundary.remove()
            return _C.close()

    def stats(self) -> Stats:
        """What has happened so far; after the scope has ended, what happened in it."""
        if self._final is not None:
            return self._final
        self._require_open()
        return Stats(**_C.stats())

    def why_lost(self) -> str:
        """The op at which the plan was last lost, as a sentence. Empty: it never was, or there is
        no plan."""
        self._require_open()
        return _C.why_lost()

    def events(self) -> list[Event]:
        """The events since the last call, in order. Needs `events=True`."""
        self._require_open()
        if self._live is not None:
            raise RuntimeError(
                f"the events are written to {self._events}. Tip: coop.EventFile reads them, when the scope has ended"
            )
        return [Event(*event) for event in _C.events()]

    def finish_events(self) -> str:
        """Writes the remaining events to their file, if there is one, and closes it. The end of
        the scope does so too. Returns an error as a sentence; empty: none."""
        return "" if self._live is None else self._live.finish()

    def adopt(self, *things: Any) -> int:
        """Moves tensors that existed before the scope into the arena.

        Takes modules, optimizers, tensors, and lists, tuples and dicts of them. Tensors whose
        memory belongs to somebody else (numpy, shared memory) stay where they are. Returns the
        bytes moved.
        """
        self._require_open()
        moved = 0
        for tensor in _tensors(things):
            if tensor.layout is torch.strided and tensor.device.type == "cpu":
                moved += _C.adopt(tensor)
        return moved

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Brings the tensor back and keeps it resident until `unpin`, the end of the scope, or the
        end of its memory (the program drops it, or makes it larger). Pins are counted: pin twice,
        unpin twice."""
        self._require_open()
        _C.pin(tensor)
        return tensor

    def unpin(self, tensor: torch.Tensor) -> None:
        self._require_open()
        _C.unpin(tensor)

    def materialise(self, tensor: torch.Tensor) -> torch.Tensor:
        """Brings the tensor back now. It may be evicted again."""
        self._require_open()
        _C.materialise(tensor)
        return tensor

    def commit(self, tensor: torch.Tensor) -> torch.Tensor:
        """Cuts the tensor's lineage: it stays resident as long as it lives, and the op that made
        it is forgotten."""
        self._require_open()
        _C.commit(tensor)
        return tensor

    def state(self, tensor: torch.Tensor) -> str:
        """Where the tensor's bytes are: resident, evicted, swapped (in the tier), source (resident,
        and nothing can recompute it), exposed (a pointer to it is known outside) or foreign (not in
        the arena)."""
        self._require_open()
        return _C.state(tensor)

    def check(self) -> None:
        """Checks the engine's rules now; raises if one is broken."""
        self._require_open()
        _C.check()

    def _require_open(self) -> None:
        if self._state != "open":
            raise RuntimeError(
                "the budget's scope is not open" if self._state == "new" else "the budget's scope has ended"
            )


def budget(
    size: int | str,
    policy: str = "coop",
    *,
    swap: int | str | Disk | None = None,
    plan: Plan | str | Path | None = None,
    checks: int = 0,
    events: bool | str | Path = False,
    **switches: Any,
) -> Memory:
    """A scope in which every tensor byte lies in one arena of this size.

    `size` is an int of bytes or a string such as "600MiB" or "4GB". `policy` chooses what is
    evicted: coop, coop-paper, dtr, dtr-eq, dte, delta or lru.

    With `swap`, tensors may also leave with their bytes, for so much memory outside of the arena,
    or for a file (`coop.Disk`); then parameters and optimizer state can leave too. A `plan`, from
    `coop.plan.solve` or a file, says what leaves and comes back while the program does what was
    planned; where it does something else, the policy decides.

    `events=True` keeps what happens for `memory.events()`. `events="run.events"` writes it to that
    file while the program runs; `coop memory-map` and `coop.EventFile` read it.

    `checks` runs the engine's own checks: 0 never, 1 cheap ones, 2 at every event (slow), 3 also
    evicts all that can leave after every op (to find errors). Further keywords switch parts of the
    policy, for comparison: window, partition, per_byte, keep_dead, in_place, move, rescue.
    """
    count = parse_bytes(size)
    machine = machine_bytes()
    if machine and count > machine:
        raise ValueError(
            f"a budget of {format_bytes(count)} is more than this machine has: {format_bytes(machine)} of memory"
        )
    options = options_for(policy, count, checks, switches)
    options.tiny = max(options.tiny, _NUMBERS)
    options.swap_least = max(options.swap_least, _NUMBERS + 1)
    if options.alignment < 16:
        raise ValueError(f"kernels need an alignment of at least 16 bytes, not {options.alignment}")
    if count < options.alignment:
        raise ValueError(
            f"a budget of {format_bytes(count)} is less than one block of {format_bytes(options.alignment)}"
        )
    followed = None
    if plan is not None:
        known = plan if isinstance(plan, Plan) else read(plan)
        refuse_unless_for(known, None, count)
        followed = planned(known, count, live=True)
    tier = tier_of(swap)
    options.swap = tier is not None
    return Memory(options, events, followed, tier, policy)


def measure() -> Memory:
    """A scope without a limit. `stats().peak` is what the program needs; `stats().floor` what no
    budget can go below."""
    options = options_for("coop", max(4 * machine_bytes(), 1 << 40), 0, {"keep_dead": False, "move": False})
    return Memory(options)


def _tensors(things: Iterable[Any]) -> Iterator[torch.Tensor]:
    for thing in things:
        if isinstance(thing, torch.Tensor):
            yield thing
            if thing.grad is not None:
                yield thing.grad
        elif isinstance(thing, torch.nn.Module):
            yield from _tensors(thing.parameters())
            yield from _tensors(thing.buffers())
        elif isinstance(thing, torch.optim.Optimizer):
            yield from _tensors(thing.state.values())
            for group in thing.param_groups:
                yield from _tensors(group["params"])
        elif isinstance(thing, dict):
            yield from _tensors(thing.values())
        elif isinstance(thing, list | tuple | set):
            yield from _tensors(thing)
        elif thing is None or isinstance(thing, int | float | str | bool):
            continue
        else:
            raise TypeError(
                f"adopt takes modules, optimizers, tensors and collections of them, not {type(thing).__name__}"
            )
