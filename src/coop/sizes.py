"""Byte counts as people write them."""

import re
from decimal import Decimal
from fractions import Fraction

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_PATTERN = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(size: int | str) -> int:
    """Bytes of "600MiB", "4 GB", "1.5GiB" or an int. KB, MB, GB are powers of 10; KiB, MiB, GiB powers of 2."""
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"a size is an int of bytes or a string such as '600MiB', not {size!r}")
    if isinstance(size, int):
        count = size
    else:
        match = _PATTERN.fullmatch(size)
        unit = _UNITS.get(match[2].lower()) if match else None
        if not match or unit is None:
            raise ValueError(
                f"{size!r} is not a size: write bytes, or a number with KB, MB, GB, KiB, MiB or GiB, such as '600MiB'"
            )
        count = round(Fraction(match[1]) * unit)
    if count <= 0:
        raise ValueError(f"a budget must be more than 0 bytes, not {size!r}")
    return count


def format_bytes(count: int) -> str:
    """Bytes with a binary unit and two digits: 1.50 GiB."""
    value, units = Decimal(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{value:.2f} {units[0]}"
