"""Points of a comparison: one run of the simulator, and the file that holds its result.

A file is written under another name and then renamed, so it is complete or absent. It holds stamps
of the trace and of the engine of the run. A result for another trace, another engine or other
settings is stale, and is computed again.
"""

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from coop import _C, policies

FORMAT = 1
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One network played by one variant at one ratio; or, without a ratio, down to the lowest that
    works."""

    network: str
    variant: str
    ratio: float | None = None

    def file(self, folder: Path) -> Path:
        if self.ratio is None:
            return folder / "lowest" / self.network / f"{self.variant}.json"
        return folder / "points" / self.network / f"{self.variant}@{self.ratio:.4f}.json"

    def __str__(self) -> str:
        return f"{self.network}, {self.variant}, {'lowest' if self.ratio is None else f'{self.ratio:.2f}'}"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a result depends on, besides its point."""

    trace: str
    engine: str
    steps: int
    limit: float
    format: int = FORMAT


def stamp_of(trace: Path, steps: int, limit: float) -> Stamp:
    return Stamp(_digest(trace), engine_stamp(), steps, limit)


@functools.cache
def engine_stamp() -> str:
    return _digest(Path(_C.__file__), Path(policies.__file__))


def _digest(*files: Path) -> str:
    sha = hashlib.sha256()
    for file in files:
        sha.update(file.read_bytes())
    return sha.hexdigest()[:16]


def write(point: Point, stamp: Stamp, figures: Figures, folder: Path) -> None:
    file = point.file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(asdict(point) | {"stamp": asdict(stamp), "figures": figures}, indent=1)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
    try:
        with open(handle, "w") as part:
            part.write(content)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def read(point: Point, stamp: Stamp, folder: Path) -> Figures | None:
    """None: not computed yet, truncated, or stale."""
    try:
        content = json.loads(point.file(folder).read_text())
        if content["stamp"] != asdict(stamp) or any(content[key] != value for key, value in asdict(point).items()):
            return None
        figures: Figures = content["figures"]
        return figures if isinstance(figures.get("status"), str) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def parse_ratios(text: str) -> list[float]:
    """Ratios of a list such as 0.4,0.5 or of ranges such as 0.3:1.0:0.1, both ends included. In
    descending order."""
    ratios: set[Fraction] = set()
    for part in text.split(","):
        try:
            numbers = [Fraction(number) for number in part.split(":")]
        except (ValueError, ZeroDivisionError):
            numbers = []
        if len(numbers) == 1:
            ratios.add(numbers[0])
        elif len(numbers) == 3 and numbers[2] > 0 and numbers[0] <= numbers[1]:
            first, last, step = numbers
            ratios |= {first + i * step for i in range(int((last - first) / step) + 1)}
        else:
            raise ValueError(f"{part!r} is not a ratio such as 0.5, nor a range such as 0.3:1.0:0.1")
    if any(not 0 < ratio <= 10 for ratio in ratios):
        raise ValueError(f"ratios lie above 0 and are at most 10; there is another in {text!r}")
    return [round(float(ratio), 4) for ratio in sorted(ratios, reverse=True)]


def neighbours(ratio: float, distance: float) -> Sequence[float]:
    """The ratios around one ratio whose mean is taken: near their limit, policies alternate
    between success and out of memory."""
    if not distance:
        return (ratio,)
    return tuple(round(ratio + by, 4) for by in (-distance, 0.0, distance) if ratio + by > 0)
