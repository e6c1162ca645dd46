"""Byte counts as people write them."""

import re
from decimal import Decimal
from fractions import Fraction

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SHARE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")
_PATTERN = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(size: int | str, what: str = "a budget") -> int:
    """Bytes of "600MiB", "4 GB", "1.5GiB" or an int. KB, MB, GB are powers of 10; KiB, MiB, GiB
    powers of 2. `what` is named in errors."""
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
        raise ValueError(f"{what} must be more than 0 bytes, not {size!r}")
    return count


def parse_budget(text: str) -> int | float:
    """An int of bytes, or a float: a share of what a step needs by itself. "50%" and "0.5" are
    shares, "600MiB" is bytes.

    A number without a unit is a share if it has a decimal point.
    """
    match = _SHARE.fullmatch(text)
    if not match or ("." not in match[1] and not match[2]):
        return parse_bytes(text)
    share = float(Fraction(match[1].rstrip(".")) / (100 if match[2] else 1))
    if not 0 < share <= 100:
        raise ValueError(f"a budget must be more than 0 and at most 100 times the step's own peak, not {text!r}")
    return share


def format_bytes(count: int) -> str:
    """Bytes with a binary unit and two digits: 1.50 GiB."""
    value, units = Decimal(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{value:.2f} {units[0]}"
