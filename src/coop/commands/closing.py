"""The closing report of `coop run`: a table on stderr.

Of several ranks, rank 0 reports: the smallest and the largest of each figure, with their ranks, and
who has left none. Where ranks cannot reach each other, each reports for itself.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from coop.budget import Memory
from coop.distributed.gathering import Gathering
from coop.events import Stats
from coop.sizes import format_bytes

WIDTH = 120
"""Columns of the table of several ranks, in a file."""
PATIENCE = 5.0
"""Seconds that rank 0 waits for the others' figures."""
PATIENCE_AFTER_FAILURE = 2.0
"""The others may wait for this rank, and end only when it has ended."""


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    value: Callable[[Stats], float]
    text: Callable[[Stats], str]
    shown: Callable[[Stats], bool] = lambda stats: True


class ClosingReport:
    """Is made when the program begins, and told once."""

    def __init__(
        self,
        memory: Memory,
        figures: list[Figure],
        stream: TextIO,
        gathering: Gathering | None = None,
        events: str | None = None,
    ) -> None:
        self._memory = memory
        self._figures = figures
        self._stream = stream
        self._gathering = gathering
        self._events = events
        self._told = False
        self._lock = threading.Lock()

    def tell(self, failed: bool) -> None:
        """While the scope is open. Whoever comes second waits until the first has finished."""
        with self._lock:
            if self._told:
                return
            self._told = True
            stats, unwritten = self._memory.stats(), self._memory.finish_events()
            if self._gathering is None:
                self._print(self._of_one(stats, unwritten, "coop"))
            else:
                self._tell_of_several(self._gathering, stats, unwritten, PATIENCE_AFTER_FAILURE if failed else PATIENCE)

    def _tell_of_several(self, gathering: Gathering, stats: Stats, unwritten: str, patience: float) -> None:
        place = gathering.place
        if place.rank == 0:
            gathered = gathering.collect(patience)
            if gathered is not None:
                found, silent = gathered
                ranks = {0: stats} | {rank: Stats(**said["stats"]) for rank, said in found.items()}
                lost = {0: unwritten} | {rank: said["unwritten"] for rank, said in found.items()}
                self._print(self._of_several(gathering, dict(sorted(ranks.items())), lost, silent, patience))
                return
        elif gathering.leave({"stats": dataclasses.asdict(stats), "unwritten": unwritten}, patience):
            return
        self._print(self._of_one(stats, unwritten, f"coop, {place}"))

    def _of_one(self, stats: Stats, unwritten: str, title: str) -> Table:
        table = Table(box=box.ROUNDED, title=title, show_header=False)
        for figure in self._figures:
            if figure.shown(stats):
                table.add_row(figure.name, figure.text(stats))
        if self._events is not None:
            table.add_row("events", f"{self._events}: {unwritten}" if unwritten else self._events)
        return table

    def _of_several(
        self, gathering: Gathering, ranks: dict[int, Stats], lost: dict[int, str], silent: dict[int, str], waited: float
    ) -> Table:
        again = f", attempt {gathering.attempt + 1}" if gathering.attempt else ""
        table = Table(box=box.ROUNDED, title=f"coop, {gathering.place.world} ranks{again}")
        for heading in ("", "smallest", "largest"):
            table.add_column(heading)
        for figure in self._figures:
            if any(figure.shown(stats) for stats in ranks.values()):
                table.add_row(figure.name, *_extremes(figure, ranks))
        if self._events is not None:
            head, _, tail = self._events.rpartition(".rank0")
            table.add_row("events", f"{head}.rank0{tail}", f"to {head}.rank{gathering.place.world - 1}{tail}")
        for rank, sentence in lost.items():
            if sentence:
                table.add_row("events", f"rank {rank}: {sentence}")
        for who in silent.values():
            table.add_row("no figures", who, f"killed, or still running after {waited:.0f} s")
        return table

    def _print(self, table: Table) -> None:
        with contextlib.suppress(OSError, ValueError):  # the script may have closed it
            wide = len(table.columns) > 2 and not self._stream.isatty()
            Console(file=self._stream, width=WIDTH if wide else None).print(table)


def _extremes(figure: Figure, ranks: dict[int, Stats]) -> tuple[str, str]:
    least = min(ranks, key=lambda rank: figure.value(ranks[rank]))
    most = max(ranks, key=lambda rank: figure.value(ranks[rank]))
    if len(ranks) == 1:
        return f"{figure.text(ranks[least])}, rank {least}", ""
    if len({figure.text(stats) for stats in ranks.values()}) == 1:
        return figure.text(ranks[least]), "the same on all ranks"
    return tuple(f"{figure.text(ranks[rank])}, rank {rank}" for rank in (least, most))  # type: ignore[return-value]


def _time_and_share(seconds: str) -> dict[str, Any]:
    def text(stats: Stats) -> str:
        share = getattr(stats, seconds) / stats.op_seconds if stats.op_seconds else 0.0
        return f"{getattr(stats, seconds):.2f} s ({share:.1%} of the ops' time)"

    return {"value": lambda stats: getattr(stats, seconds), "text": text}


def _count(name: str) -> dict[str, Any]:
    return {"value": lambda stats: getattr(stats, name), "text": lambda stats: f"{getattr(stats, name):,}"}


def _swaps(stats: Stats) -> bool:
    return stats.swaps_out > 0


LIMITED = [
    Figure("budget", lambda s: s.budget, lambda s: format_bytes(s.budget)),
    Figure("peak", lambda s: s.peak, lambda s: f"{format_bytes(s.peak)} ({s.peak / s.budget:.0%})"),
    Figure("evictions", **_count("evictions")),
    Figure("rematerialisations", **_count("rematerialisations")),
    Figure("recomputation", **_time_and_share("recompute_seconds")),
    Figure("search", **_time_and_share("search_seconds")),
    Figure("fragmentation", lambda s: s.fragmentation, lambda s: f"{s.fragmentation:.1%}"),
    Figure(
        "swapped out, in",
        lambda s: s.swapped_out,
        lambda s: f"{format_bytes(s.swapped_out)}, {format_bytes(s.swapped_in)}",
        _swaps,
    ),
    Figure("transfers", **_time_and_share("transfer_seconds"), shown=_swaps),
    Figure("hidden behind ops", lambda s: s.hidden_share, lambda s: f"{s.hidden_share:.0%} of that", _swaps),
    Figure(
        "there in time, late",
        lambda s: s.prefetch_hits,
        lambda s: f"{s.prefetch_hits:,}, {s.prefetch_misses:,}",
        _swaps,
    ),
    Figure("planned", lambda s: s.planned_steps, lambda s: f"{s.planned_steps:,} steps", lambda s: s.planned_ops > 0),
]
"""Of a budget."""

MEASURED = [
    Figure("peak", lambda s: s.peak, lambda s: f"{format_bytes(s.peak)} ({s.peak} bytes)"),
    Figure("floor", lambda s: s.floor, lambda s: f"{format_bytes(s.floor)} ({s.floor} bytes)"),
    Figure("time in ops", lambda s: s.op_seconds, lambda s: f"{s.op_seconds:.2f} s"),
]
"""Without a limit."""
