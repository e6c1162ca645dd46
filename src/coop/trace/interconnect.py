"""The interconnect: what joins the devices of several ranks."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interconnect:
    bandwidth: float
    """Bytes per second that one device sends to others of its machine, and as many that it
    receives."""
    network: float | None = None
    """The same where a collective goes over several machines. None: there is no difference."""
    per_node: int | None = None
    """Devices in a machine. None: as many as there are."""

    def seconds(self, bytes: int, ranks: Sequence[int]) -> float:
        """The time of a collective in which each of these ranks sends so many bytes. A ring is as
        fast as its slowest link."""
        several = self.per_node is not None and len({rank // self.per_node for rank in ranks}) > 1
        return bytes / (min(self.network, self.bandwidth) if several and self.network else self.bandwidth)
