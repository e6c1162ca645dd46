"""What the engine tells, in its order: the reference reads it as it plays.

What follows from the program and from what has been told so far, the reference finds itself, and the engine's next event has
to be the same (`expect`). Where the engine may choose, the reference reads on, and refuses what is not legal (`refuse`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from coop.events import Event


class RefereeError(Exception):
    """The engine has done something that is not legal, or is not what follows."""


class Told:
    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.at = 0
        """Events that have been read."""

    def next(self, ahead: int = 0) -> Event | None:
        return self.events[self.at + ahead] if self.at + ahead < len(self.events) else None

    def kind(self, ahead: int = 0) -> str:
        """Empty: the engine has no more to tell."""
        event = self.next(ahead)
        return event.kind if event else ""

    def expect(self, event: Event) -> None:
        """Of a search, the value is a time on the wall clock."""
        told = self.next()
        if told and told.kind == "search":
            told = replace(told, value=0.0)
        if told != event:
            raise RefereeError(f"event {self.at}\n  engine     {told}\n  reference  {event}")
        self.at += 1

    def refuse(self, why: str) -> NoReturn:
        raise RefereeError(f"event {self.at}, {self.next()}: {why}")
