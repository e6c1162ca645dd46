"""Paging: storage beside memory, to which values go and from which they come back.

Transfers are counted as POET's users would see them: one after the other, computing nothing meanwhile. Bytes on their way are in
memory: what goes out until it has been written, what comes in from the beginning.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paging:
    in_latency: float
    """Seconds for each transfer."""
    in_bandwidth: float
    """Bytes per second."""
    out_latency: float
    out_bandwidth: float
    watts: float = 0.0
    """That a transfer takes while it lasts."""
    capacity: int | None = None
    """Bytes. None: more than anybody needs."""

    def in_time(self, size: int) -> int:
        """Nanoseconds."""
        return round(1e9 * (self.in_latency + size / self.in_bandwidth))

    def out_time(self, size: int) -> int:
        return round(1e9 * (self.out_latency + size / self.out_bandwidth))
