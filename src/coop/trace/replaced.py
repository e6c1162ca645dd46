"""Attributes of other modules and classes that have another value for a while."""

from collections.abc import Iterable
from typing import Any

_MISSING = object()


class Replaced:
    """(owner, name, value): while it is entered, `owner.name` is that value."""

    def __init__(self, values: Iterable[tuple[Any, str, Any]]) -> None:
        self._values = list(values)
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        for owner, name, value in self._values:
            self._before.append((owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, value)

    def __exit__(self, *error: object) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _MISSING:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, value)
