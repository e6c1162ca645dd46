"""Paging: storage beside memory, to which values are written and from which they are read back.

Transfers are counted as on POET's devices: one after the other, and nothing is computed meanwhile.
Bytes in transfer are in memory: outgoing ones until they have been written, incoming ones from the
beginning.
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
    """Power that a transfer takes while it lasts."""
    capacity: int | None = None
    """Bytes. None: no limit."""

    def in_time(self, size: int) -> int:
        """Nanoseconds."""
        return round(1e9 * (self.in_latency + size / self.in_bandwidth))

    def out_time(self, size: int) -> int:
        return round(1e9 * (self.out_latency + size / self.out_bandwidth))
