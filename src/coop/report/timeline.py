"""The timeline of a run: what the arena held and when. rebuild.py makes it from events."""

import enum
from dataclasses import dataclass, field


class Kind(enum.IntEnum):
    """What a part of the arena holds.

    Dead storages are not held, and are kept while there is room. Passing ones are sources that
    appeared after the first recorded op and were gone before the end: mostly gradients. An arriving
    storage is being read back by a transfer.
    """

    free = 0
    source = 1
    expensive = 2
    cheap = 3
    dead_expensive = 4
    dead_cheap = 5
    raw = 6
    passing = 7
    arriving = 8


@dataclass(slots=True)
class Span:
    """A block, for as long as its place and its contents stay the same."""

    kind: Kind
    storage: int
    offset: int
    bytes: int
    start: float
    end: float


@dataclass(slots=True)
class Mark:
    """Something that happens to a block.

    evict    the program holds it, and it leaves without a copy: to be recomputed
    leave    the program holds it, and it leaves with a copy in the tier
    restore  it is back, recomputed
    in       it is back, by a transfer
    move     it has come from `origin`
    """

    kind: str
    at: float
    offset: int
    bytes: int
    origin: int = 0
    """The offset before a move."""


@dataclass(slots=True)
class Transfer:
    """A transfer between a block and the swap tier, from its beginning to its end."""

    direction: str
    """out or in"""
    offset: int
    bytes: int
    start: float
    end: float
    waiting: float
    """When the program began to wait for it; equal to `end`: never."""


@dataclass(slots=True)
class Timeline:
    """What happened between `start` and `end`; by default, in the whole run."""

    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    plans: list[tuple[str, float]] = field(default_factory=list)
    """When a plan was adopted, and when one was lost: plan_adopted or plan_lost, and the time."""
    recomputing: list[tuple[float, float]] = field(default_factory=list)
    """When ops were run again, in order and without overlaps. The same holds for the lists
    below."""
    waiting: list[tuple[float, float]] = field(default_factory=list)
    """When the program waited for transfers."""
    start: float = 0.0
    end: float = 0.0
    last: list[Span] = field(default_factory=list)
    """The spans that still exist at the end, by offset."""

    def count(self, kind: str) -> int:
        """How many marks there are of a kind."""
        return sum(mark.kind == kind for mark in self.marks)

    def transferring(self, direction: str) -> list[tuple[float, float]]:
        """When bytes were transferred in that direction, in order and without overlaps."""
        return union([(t.start, t.end) for t in self.transfers if t.direction == direction])

    def transferred(self, direction: str) -> int:
        return sum(transfer.bytes for transfer in self.transfers if transfer.direction == direction)


def union(parts: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times, in order and without overlaps."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(parts):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined
