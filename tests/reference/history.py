"""The reference's history: what comes next, as far as the last time tells.

Part of the specification in reference.py. Every op leaves an entry in a log: the storages that it used, and those that were
born with it. The cursor is the entry that the op that runs now is like. A storage that was there already will be used as it
was used after the cursor; one that is born now, as the one that it is like.

Not done here: the engine forgets what lies long before the cursor, in logs of more than 8,192 entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from reference.lineage import Storage

SHORTEST = 1e-9
"""Seconds."""
SKIP = 4
"""Entries that may be missing this time."""
TRIES = 16
"""Uses of one storage that are looked at, to find the place in the log."""


@dataclass
class Lesson:
    """What the last times have taught of a storage, and of those that it is like."""

    useful: float = 0.5
    """It was, to write it ahead: between 0 and 1."""
    late: float | None = None
    """Share of the time of reading it back that the program waited."""


@dataclass(eq=False)
class Life:
    """A storage in the log."""

    bytes: int
    birth: int
    """Its entry; 0: before there was a log."""
    ended: bool = False
    like: "Life | None" = None
    """The one that it repeats."""
    uses: list[int] = field(default_factory=list)
    """Entries."""
    lesson: Lesson = field(default_factory=Lesson)

    def repeat(self, other: "Life") -> None:
        self.like = other
        self.lesson = replace(other.lesson)


@dataclass
class Entry:
    at: float
    """In the program's own time."""
    used: list[Life]
    born: list[Life] = field(default_factory=list)


class History:
    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.cursor: int | None = None
        """None: it is not known what comes next."""
        self.lives: dict[Storage, Life] = {}

    def lesson(self, storage: Storage) -> Lesson | None:
        life = self.lives.get(storage)
        return life.lesson if life else None

    def used(self, storages: Sequence[Storage], now: float) -> None:
        """An op begins that uses these."""
        lives = [self.lives.setdefault(storage, Life(storage.bytes, 0)) for storage in storages]
        self.cursor = self._find(lives)
        self.log.append(Entry(now, lives))
        for life in lives:
            life.uses.append(len(self.log) - 1)

    def born(self, storage: Storage) -> None:
        """With the op that began last, or after it."""
        if not self.log:
            return
        life = self.lives[storage] = Life(storage.bytes, len(self.log) - 1)
        born = self.log[-1].born
        if self.cursor is not None:
            then = self.log[self.cursor].born
            if len(born) < len(then) and then[len(born)].bytes == storage.bytes:
                life.repeat(then[len(born)])
        born.append(life)

    def forgotten(self, storage: Storage) -> None:
        life = self.lives.pop(storage, None)
        if life:
            life.ended = True
            life.like = None

    def next(self, storage: Storage) -> tuple[float, bool]:
        """From now on, how long it will not be used; 0: that is not known. And whether it is known to be used then."""
        life = self.lives.get(storage)
        if self.cursor is None or not life:
            return 0.0, False
        if life.birth > self.cursor:
            if not life.like:
                return 0.0, False
            life = life.like
        uses = [entry for entry in life.uses if entry > self.cursor]
        then = uses[0] if uses else len(self.log) - 1
        return max(self.log[then].at - self.log[self.cursor].at, SHORTEST), bool(uses)

    def _find(self, lives: list[Life]) -> int | None:
        """The entry behind the last one, or one soon after; else the oldest that uses one of these, as this op does."""
        if self.cursor is not None:
            for entry in range(self.cursor + 1, min(self.cursor + SKIP + 1, len(self.log))):
                if self._matches(entry, lives, surely=entry > self.cursor + 1):
                    return entry
        for life in lives:
            for entry in life.uses[:TRIES]:
                if self._matches(entry, lives, surely=True):
                    return entry
        return None

    def _matches(self, entry: int, lives: list[Life], surely: bool) -> bool:
        """Each is the one that the entry names, or like it; or may be, being of its size, if that one is no more. `surely`: one
        at least is."""
        named = self.log[entry].used
        if len(named) != len(lives):
            return False
        same = [life is other or life.like is other for life, other in zip(lives, named, strict=True)]
        for life, other, is_same in zip(lives, named, same, strict=True):
            if not is_same and not (other.ended and other.bytes == life.bytes):
                return False
        if surely and not any(same):
            return False
        for life, other, is_same in zip(lives, named, same, strict=True):
            if not is_same:
                life.repeat(other)
        return True
