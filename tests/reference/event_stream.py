"""The events of the engine that is judged, in order. The reference reads them as it plays.

Some events follow from the program and the events so far. The reference computes these itself, and
the engine's next event must be the same (`expect`). Where the engine may choose, the reference
reads its choice and refuses it if it is not legal (`refuse`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from coop.events import Event


class RefereeError(Exception):
    """An event of the engine is not legal, or is not the one that must follow."""


class EventStream:
    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.at = 0
        """How many events have been read."""

    def next(self, ahead: int = 0) -> Event | None:
        return self.events[self.at + ahead] if self.at + ahead < len(self.events) else None

    def kind(self, ahead: int = 0) -> str:
        """Empty: there are no more events."""
        event = self.next(ahead)
        return event.kind if event else ""

    def expect(self, event: Event) -> None:
        """The value of a search is a time on the wall clock: it is not compared."""
        given = self.next()
        if given and given.kind == "search":
            given = replace(given, value=0.0)
        if given != event:
            raise RefereeError(f"event {self.at}\n  engine     {given}\n  reference  {event}")
        self.at += 1

    def refuse(self, why: str) -> NoReturn:
        raise RefereeError(f"event {self.at}, {self.next()}: {why}")
