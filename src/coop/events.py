"""What the engine tells: its figures, and one event for each thing that happens in the arena."""

import dataclasses

from coop.sizes import format_bytes


@dataclasses.dataclass(frozen=True)
class Stats:
    """What happened in a scope. Bytes are ints, times are seconds."""

    budget: int
    """The bytes allowed; the size of the arena."""
    in_use: int
    """Bytes held by the program and by running kernels now."""
    peak: int
    """The most that was in use at once."""
    cached: int
    """Bytes of recomputed results that nobody holds: kept while there is room, free for the taking."""
    free: int
    largest_free: int
    """The largest free piece."""
    sources: int
    """Bytes that nothing can recompute: parameters, buffers, data, optimizer state."""
    floor: int
    """The most that sources and a single op needed at once. No budget below it can serve this program."""
    evictions: int
    rematerialisations: int
    replays: int
    moves: int
    commits: int
    allocations: int
    ops: int
    recorded_ops: int
    storages: int
    records: int
    """Ops that are recorded now."""
    looks: int
    """At records, to find what no longer has to be kept."""
    searches: int
    exact_costs: int
    union_find_costs: int
    evicted_bytes: int
    moved_bytes: int
    op_seconds: float
    """Time in the program's own ops."""
    recompute_seconds: float
    """Time in ops that were run again."""
    search_seconds: float
    move_seconds: float
    fragmentation: float
    """Free bytes that were left after requests that forced an eviction, as a share of the budget, on average."""
    swaps_out: int = 0
    """Storages whose bytes have left the arena, for a tier or, by a plan, for a file; and those that came back."""
    swaps_in: int = 0
    swapped_out: int = 0
    """Bytes of these."""
    swapped_in: int = 0
    transfer_seconds: float = 0.0
    """Spent on both, and how much of it the program did not have to wait for."""
    hidden_seconds: float = 0.0
    waited_seconds: float = 0.0
    """By the program, for transfers: the rest of it, or more, where one waits behind others."""
    prefetch_hits: int = 0
    """Storages that were on their way back, or there, when they were needed; and those that had to be asked for first."""
    prefetch_misses: int = 0
    planned_steps: int = 0
    """Steps that followed the plan to their end."""
    planned_ops: int = 0
    """Ops that followed the plan."""
    plan_losses: int = 0
    """How often the program did something else than was planned."""

    def __str__(self) -> str:
        share = self.recompute_seconds / self.op_seconds if self.op_seconds else 0.0
        return (
            f"budget {format_bytes(self.budget)}, peak {format_bytes(self.peak)}, {self.evictions} evictions, "
            f"{self.rematerialisations} rematerialisations, {self.moves} moves; {self.op_seconds:.3f} s in ops, "
            f"{self.recompute_seconds:.3f} s ({share:.1%}) in recomputation, {self.search_seconds:.3f} s in "
            f"{self.searches} searches; fragmentation {self.fragmentation:.1%}{self._swapped()}"
        )

    def _swapped(self) -> str:
        if not self.swaps_out:
            return ""
        return (
            f"; {format_bytes(self.swapped_out)} swapped out and {format_bytes(self.swapped_in)} in, in "
            f"{self.transfer_seconds:.3f} s, {self.hidden_share:.0%} of it hidden"
        )

    @property
    def hidden_share(self) -> float:
        """Of the time of transfers, what the program did not wait for."""
        return self.hidden_seconds / (self.transfer_seconds or 1.0)


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that happened in the arena."""

    kind: str
    """place, bind, record, commit, die, evict, restore, move, free, search or shortage; csrc/events.h says what each means."""
    time: float
    """On the engine's clock: seconds spent in ops so far."""
    storage: int
    """Its number; 0: none."""
    offset: int
    bytes: int
    """Of the block."""
    value: float
    """Of a record: its op's cost. Of a move: the offset before. Of a search: its seconds."""
