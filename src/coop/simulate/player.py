"""Playing a trace on the engine: what a budget would cost, without running the program in it.

The engine is the one that trains; only the kernels are missing. csrc/simulate/player.h is its
driver.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

from coop import _C
from coop.events import Event, Stats
from coop.plan.model.graph import from_trace
from coop.plan.model.plan import Plan
from coop.plan.running.follow import planned, refuse_unless_for
from coop.policies import options_for
from coop.sizes import format_bytes
from coop.trace.trace import Hold, Op, Release, Source, Trace

_LINK = 12e9
"""Bytes per second, each way, if the trace does not say: the link between a device and its host,
PCIe 3."""
_LOAD = 0.05
"""The share of a transfer's time that the ops beside it lose: little, if the device has a copy
engine."""

STATUSES = ("ok", "out_of_memory", "thrash")
THRASH = 2.0
"""The overhead from which a run counts as thrashing and is ended."""


@dataclasses.dataclass(frozen=True)
class Simulation:
    status: str
    """One of STATUSES."""
    overhead: float | None
    """Time in ops, recomputation, moves and waiting for transfers, divided by the time in ops
    without a limit. None: it did not run to its end."""
    budget: int
    ratio: float
    """The budget, divided by the step's own peak."""
    stats: Stats
    failed: int | None = None
    """The number of the instruction that failed; None: none did."""
    needed: int = 0
    """Bytes that this instruction needed in one piece."""
    replays: tuple[tuple[int, int], ...] = ()
    """The replays: the instruction that ran when it happened, and the instruction that was run
    again."""
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        """One line. Without an overhead if it did not run to its end."""
        stats, words = self.stats, self.status.replace("_", " ")
        if self.overhead is None:
            needed = f", for {format_bytes(self.needed)} in one piece" if self.needed else ""
            return f"{words} at instruction {self.failed}{needed}, in {self.ratio:.0%} of the memory"
        moves = f", {stats.moves:,} moved" if stats.moves else ""
        return (
            f"{self.ratio:.0%} of the memory: {self.overhead - 1:.1%} more time; {stats.evictions:,} evicted, "
            f"{stats.rematerialisations:,} recomputed{moves}; fragmentation {stats.fragmentation:.1%}"
        )

    def to_json(self) -> dict[str, Any]:
        stats = self.stats
        return {
            "status": self.status,
            "overhead": self.overhead,
            "budget": self.budget,
            "ratio": self.ratio,
            "peak": stats.peak,
            "evictions": stats.evictions,
            "rematerialisations": stats.rematerialisations,
            "moves": stats.moves,
            "moved_bytes": stats.moved_bytes,
            "fragmentation": stats.fragmentation,
            "searches": stats.searches,
            "search_seconds": stats.search_seconds,
        }


class Floor(NamedTuple):
    """The most bytes that sources and a single op need at once. No smaller budget is enough."""

    bytes: int
    setter: int
    """The number of the instruction that needs it."""


class Player:
    """A trace, prepared to be played many times."""

    def __init__(self, trace: Trace, alignment: int | None = None) -> None:
        """`alignment` of blocks; default: that of the device in the trace."""
        self.trace = trace
        self.alignment = alignment = trace.alignment if alignment is None else alignment
        self._options: dict[str, Any] = {"alignment": self.alignment, **speeds_of(trace)}
        self._program = _C.TraceProgram()
        for instruction in trace.instructions:
            match instruction:
                case Source():
                    self._program.source(
                        instruction.bytes,
                        instruction.kind == "parameter",
                        -1 if instruction.carries is None else instruction.carries,
                    )
                case Op():
                    self._program.op(
                        instruction.inputs,
                        [(output.bytes, output.alias) for output in instruction.outputs],
                        instruction.writes,
                        instruction.cost * 1e-9,
                        instruction.scratch,
                        instruction.phase == "backward",
                        instruction.replayable,
                    )
                case Hold():
                    self._program.hold(instruction.tensor)
                case Release():
                    self._program.release(instruction.tensor)
        self._enough = 2 * sum(size + alignment for i in trace.instructions for size in _sizes(i)) + alignment
        stats = self._unlimited("coop")["stats"]
        self.peak: int = stats["peak"]
        """Bytes that the step needs when nothing is evicted."""
        self.op_seconds: float = stats["op_seconds"]

    @functools.cached_property
    def _graph(self) -> str:
        return from_trace(self.trace).fingerprint

    def floor(self, policy: str = "coop", **switches: Any) -> Floor:
        """Depends on the policy: whether gradients can be recomputed decides what is a source."""
        unlimited = self._unlimited(policy, **switches)
        return Floor(unlimited["stats"]["floor"], unlimited["floor_setter"])

    def _unlimited(self, policy: str, **switches: Any) -> dict[str, Any]:
        options = options_for(policy, self._enough, 0, self._options | switches | {"keep_dead": False})
        return _C.play(options, self._program, 1, 1.0, False)

    def play(
        self,
        budget: int | float,
        policy: str = "coop",
        *,
        steps: int = 1,
        limit: float = THRASH,
        events: bool = False,
        checks: int = 0,
        plan: Plan | None = None,
        **switches: Any,
    ) -> Simulation:
        """`budget`: bytes, or a share of the peak if it is a float. With a `plan`, the policy only
        decides what the plan leaves open."""
        size = int(budget * self.peak) if isinstance(budget, float) else budget
        options = options_for(policy, size, checks, self._options | switches)
        followed = None
        if plan is not None:
            refuse_unless_for(plan, self._graph, size)
            followed = planned(plan, size, live=False)
        result = _C.play(options, self._program, steps, limit - 1, events, followed)
        stats = Stats(**result["stats"])
        done = result["status"] == "ok"
        return Simulation(
            status=result["status"],
            overhead=overhead_of(stats) if done else None,
            budget=size,
            ratio=size / self.peak if self.peak else 1.0,
            stats=stats,
            failed=None if done else result["at"],
            needed=result["needed"],
            events=tuple(Event(*event) for event in result["events"]),
            replays=tuple(result["replays"]),
        )


def speeds_of(trace: Trace) -> dict[str, float]:
    """The speeds at which bytes move on the trace's device: inside its memory, and to where they
    swap."""
    into, out = trace.swap_bandwidth or (_LINK, _LINK)
    moving = {} if trace.copy_bandwidth is None else {"copy_bandwidth": float(trace.copy_bandwidth)}
    return {"swap_in": into, "swap_out": out, "swap_load": _LOAD, **moving}


def simulate(trace: Trace, budget: int | float, policy: str = "coop", **options: Any) -> Simulation:
    """Plays one step of the trace in a budget of bytes, or of a share of its own peak. See
    Player.play for the options."""
    return Player(trace).play(budget, policy, **options)


def overhead_of(stats: Stats) -> float:
    whole = stats.op_seconds + stats.recompute_seconds + stats.move_seconds + stats.waited_seconds
    return whole / (stats.op_seconds or 1.0)


def _sizes(instruction: Any) -> list[int]:
    if isinstance(instruction, Source):
        return [instruction.bytes]
    if isinstance(instruction, Op):
        return [instruction.scratch, *(output.bytes for output in instruction.outputs)]
    return []
