"""The results of a sweep, and what is computed from them: means over neighbouring ratios,
differences, extremes.

Pictures and pages read this and nothing else. A point that failed has no overhead. Means are over
points that ran, and differences over points where both ran; failures are counted separately.
"""

import functools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from coop.report.points import Figures, Point, neighbours
from coop.report.sweep import Sweep


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one network, one variant and one ratio, over the neighbouring ratios."""

    answers: tuple[Figures, ...]

    @property
    def ran(self) -> list[Figures]:
        return [answer for answer in self.answers if answer["status"] == "ok"]

    @property
    def complete(self) -> bool:
        return bool(self.answers) and len(self.ran) == len(self.answers)

    @property
    def overhead(self) -> float | None:
        """The mean of the runs that succeeded: 0.11 for 11 % more time than without a limit."""
        return self.mean("overhead", -1.0)

    def mean(self, figure: str, plus: float = 0.0) -> float | None:
        return statistics.fmean(answer[figure] for answer in self.ran) + plus if self.ran else None


@dataclass(frozen=True, slots=True)
class Difference:
    """One variant against another, in overhead: 0.01 is one percentage point more. Negative is
    better."""

    mean: float | None
    worst: float | None
    worst_at: tuple[str, float] | None
    compared: int
    only_first: int
    """Points that ran under the first but not under the second."""
    only_second: int


@dataclass(frozen=True)
class Results:
    sweep: Sweep
    variants: Sequence[str]
    ratios: Sequence[float]
    distance: float = 0.0
    """How far apart neighbouring ratios are."""
    ablated: Sequence[str] = ()
    """Variants of the first of `variants`, each with one part off."""
    with_lowest: bool = False

    @property
    def networks(self) -> list[str]:
        return list(self.sweep.traces)

    def wanted(self) -> Iterator[Point]:
        for network in self.networks:
            for variant in dict.fromkeys([*self.variants, *self.ablated]):
                for ratio in self.ratios:
                    yield from (Point(network, variant, near) for near in neighbours(ratio, self.distance))
            if self.with_lowest:
                yield from (Point(network, variant) for variant in self.variants)

    @functools.cached_property
    def answers(self) -> dict[Point, Figures]:
        """Read once, when the sweep is done."""
        read = {point: self.sweep.read(point) for point in self.wanted()}
        return {point: answer for point, answer in read.items() if answer is not None}

    def cell(self, network: str, variant: str, ratio: float) -> Cell:
        answers = (self.answers.get(Point(network, variant, near)) for near in neighbours(ratio, self.distance))
        return Cell(tuple(answer for answer in answers if answer is not None))

    def cells(self, network: str, variant: str, ratios: Iterable[float] | None = None) -> list[Cell]:
        return [self.cell(network, variant, ratio) for ratio in (self.ratios if ratios is None else ratios)]

    def over(self, network: str, variant: str, figure: str, fold: Callable[[list[float]], float]) -> float | None:
        """A figure over all ratios at which the network ran."""
        values = [answer[figure] for cell in self.cells(network, variant) for answer in cell.ran]
        return fold(values) if values else None

    def search_time(self, network: str, variant: str, share: float) -> float | None:
        """The time in seconds that this share of all searches, at all ratios that ran, did not
        exceed."""
        counts: Counter[float] = Counter()
        for cell in self.cells(network, variant):
            for answer in cell.ran:
                counts.update(dict(answer["search_times"]))
        left = share * counts.total()
        for seconds in sorted(counts):
            left -= counts[seconds]
            if left <= 0:
                return seconds
        return None

    def failures(self, network: str, variant: str) -> int:
        return sum(len(cell.answers) - len(cell.ran) for cell in self.cells(network, variant))

    def lowest(self, network: str, variant: str) -> float | None:
        answer = self.answers.get(Point(network, variant))
        return answer["lowest"] if answer else None

    def floor(self, network: str) -> float | None:
        """The share of the peak that no budget can go below."""
        for variant in self.variants:
            for cell in self.cells(network, variant):
                for answer in cell.answers:
                    return float(answer["floor"] / answer["unlimited_peak"])
        return None

    def difference(self, first: str, second: str, networks: Iterable[str] | None = None) -> Difference:
        gaps: list[tuple[float, tuple[str, float]]] = []
        only = [0, 0]
        for network in self.networks if networks is None else networks:
            for ratio in self.ratios:
                cells = self.cell(network, first, ratio), self.cell(network, second, ratio)
                if cells[0].complete and cells[1].complete:
                    gaps.append(((cells[0].overhead or 0.0) - (cells[1].overhead or 0.0), (network, ratio)))
                elif cells[0].complete or cells[1].complete:
                    only[cells[1].complete] += 1
        worst = max(gaps, default=None)
        return Difference(
            mean=statistics.fmean(gap for gap, _ in gaps) if gaps else None,
            worst=worst[0] if worst else None,
            worst_at=worst[1] if worst else None,
            compared=len(gaps),
            only_first=only[0],
            only_second=only[1],
        )
