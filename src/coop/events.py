"""What the engine reports: its figures, and one event for each thing that happens in the arena."""

import dataclasses

from coop.sizes import format_bytes
from coop.surface import EVENT_KINDS, StatsFields

__all__ = ["EVENT_KINDS", "Event", "Stats"]


class Stats(StatsFields):
    """What happened in a scope. Bytes are ints, times are seconds."""

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
        """The share of transfer time that the program did not wait for."""
        return self.hidden_seconds / (self.transfer_seconds or 1.0)


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that happened in the arena."""

    kind: str
    """One of EVENT_KINDS, which says what each of them means."""
    time: float
    """On the engine's clock: seconds spent in ops, and waiting for transfers, so far."""
    storage: int
    """The number of the storage; 0: none."""
    offset: int
    bytes: int
    """The size of the block."""
    value: float
    """Of a record: its op's cost in seconds. Of a move: the offset before. Of a search or a
    transfer: its seconds. Of a plan: a number of ops. Of a price: seconds."""
    waited: float = 0.0
    """Seconds that the program waited for a transfer. Of a price: the idle time."""
