"""Tiers: where swapped tensors are kept."""

import os
from dataclasses import dataclass
from pathlib import Path

from coop import _C
from coop.distributed.place import place_now
from coop.sizes import format_bytes, parse_bytes


@dataclass(frozen=True)
class Host:
    """Memory outside of the arena."""

    limit: int
    """Bytes."""

    def open(self) -> None:
        _C.swap_to_host(self.limit)


class Disk:
    """A file in a folder. It is unlinked at once, so that nothing is left of it however the
    process ends.

    `limit`: how large it may grow, in bytes or as in "20GiB". What is read is compared with a
    checksum of what was written.
    """

    def __init__(self, folder: str | Path, limit: int | str | None = None) -> None:
        self.folder = Path(folder)
        self.limit = 0 if limit is None else parse_bytes(limit, "a tier")

    def __repr__(self) -> str:
        return f"Disk({str(self.folder)!r}" + (f", limit={format_bytes(self.limit)!r})" if self.limit else ")")

    def open(self) -> None:
        try:
            _C.swap_to_file(os.fspath(self.folder), self.limit, True, pages_name())
        except RuntimeError as error:
            raise OSError(
                f"there can be no file to swap to in {self.folder}: {error}. Tip: a folder that exists and can be written to"
            ) from None


def pages_name() -> str:
    """What the name of a file for swapped tensors begins with. It names the rank: the file is
    unlinked, and only lists of open files show it."""
    place = place_now()
    return f"coop-pages-rank{place.rank}" if place else "coop-pages"


def tier_of(swap: int | str | Disk | None) -> Host | Disk | None:
    """The tier that the argument of `coop.budget(swap=...)` means."""
    if swap is None or isinstance(swap, Disk):
        return swap
    return Host(parse_bytes(swap, "a tier"))
