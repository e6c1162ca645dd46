"""The sweep: many points, played in parallel processes or on the workers of a cluster. Each result
is kept as soon as it exists.

A point with a valid file is not played again: an interrupted sweep continues where it stopped.
Points come network by network, and a process keeps the network that it played last.
"""

import contextlib
import math
import multiprocessing
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from coop.report import points
from coop.report.points import Figures, Point, Stamp
from coop.report.variants import Variant
from coop.simulate.checked import player_of
from coop.simulate.player import THRASH, Player, Simulation
from coop.spread import Cluster, ClusterError
from coop.trace.formats import read_any, read_content
from coop.trace.trace import Trace

Played = Generator[tuple[Point, BaseException | None], None, None]
"""Points that are done, with the error of those that failed."""
PRECISION = 0.005
"""The precision of the lowest ratio."""
STRIDE = 0.05
"""The step of the walk down to it."""


class SweepError(RuntimeError):
    """Some points could not be played. The text names the first; all others are done and kept."""


@dataclass
class Sweep:
    traces: dict[str, Path]
    """The networks, and the files with their steps."""
    folder: Path
    """Where the results go."""
    steps: int = 1
    limit: float = THRASH
    stamps: dict[str, Stamp] = field(init=False)

    def __post_init__(self) -> None:
        self.stamps = {name: points.stamp_of(file, self.steps, self.limit) for name, file in self.traces.items()}

    def read(self, point: Point) -> Figures | None:
        return points.read(point, self.stamps[point.network], self.folder)

    def missing(self, wanted: Iterable[Point]) -> list[Point]:
        order = {name: place for place, name in enumerate(self.traces)}
        open_points = {point for point in wanted if self.read(point) is None}
        return sorted(open_points, key=lambda p: (order[p.network], p.ratio is not None, p.variant, -(p.ratio or 0)))

    def run(
        self, wanted: Iterable[Point], jobs: int, tick: Callable[[Point], None], cluster: Cluster | None = None
    ) -> None:
        """Plays the missing points, in `jobs` processes; with one job, in this one; with a
        cluster, there. Stops at once if interrupted."""
        missing = self.missing(wanted)
        failed: list[tuple[Point, BaseException]] = []
        if cluster is not None:
            played = self._elsewhere(missing, cluster)
        else:
            played = self._in_turn(missing) if jobs == 1 else self._in_parallel(missing, jobs)
        with contextlib.closing(played) as results:
            for point, error in results:
                tick(point)
                if error is not None:
                    failed.append((point, error))
        if failed:
            point, error = failed[0]
            raise SweepError(
                f"{len(failed)} of {len(missing)} points could not be played, such as {point}: {error}. The others are done."
            )

    def _in_turn(self, missing: list[Point]) -> Played:
        for point in missing:
            try:
                self._play(point)
            except Exception as error:
                yield point, error
            else:
                yield point, None

    def _in_parallel(self, missing: list[Point], jobs: int) -> Played:
        if not missing:
            return
        context = multiprocessing.get_context("spawn")
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(min(jobs, len(missing)), context)
        with _deaf_to_interrupts():
            asked: dict[Future[None], Point] = {pool.submit(self._play, point): point for point in missing}
        try:
            for done in as_completed(asked):
                error = done.exception()
                if isinstance(error, BrokenProcessPool):
                    raise SweepError("a process that plays points has died; what is finished is kept") from error
                yield asked[done], error
        finally:
            finished = all(future.done() for future in asked)
            workers = [] if finished else [child for child in multiprocessing.active_children() if child not in others]
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:  # nothing is lost: each result file is complete or absent
                worker.kill()
            pool.shutdown(wait=True)

    def _elsewhere(self, missing: list[Point], cluster: Cluster) -> Played:
        """Workers get the content of traces, because they may have no files in common with us."""
        needed = dict.fromkeys(point.network for point in missing)
        shared = {network: cluster.share(self.traces[network].read_bytes()) for network in needed}
        arguments = [
            (shared[p.network], self.stamps[p.network].trace, p, self.steps, self.limit, str(self.traces[p.network]))
            for p in missing
        ]
        try:
            for number, result in cluster.calls(play_content, arguments):
                point = missing[number]
                if not isinstance(result, BaseException):
                    points.write(point, self.stamps[point.network], result, self.folder)
                    result = None
                yield point, result
        except ClusterError as error:
            raise SweepError(f"{error}; what is finished is kept, and the same command goes on from there") from None

    def _play(self, point: Point) -> None:
        figures = play_point(_player(self.traces[point.network]), point, self.steps, self.limit)
        points.write(point, self.stamps[point.network], figures, self.folder)


def play_point(player: Player, point: Point, steps: int, limit: float) -> Figures:
    started = time.perf_counter()
    variant = Variant.parse(point.variant)
    switches = dict(variant.switches)
    floor = player.floor(variant.policy, **switches).bytes

    def simulate(ratio: float, events: bool = False) -> Simulation:
        return player.play(ratio, variant.policy, steps=steps, limit=limit, events=events, **switches)

    if point.ratio is None:
        figures = lowest(simulate, floor / max(player.peak, 1))
    else:
        figures = figures_of(simulate(point.ratio, events=True))
    return figures | {"unlimited_peak": player.peak, "floor": floor, "seconds": time.perf_counter() - started}


def play_content(content: bytes, digest: str, point: Point, steps: int, limit: float, name: str) -> Figures:
    """Plays a point of a trace that is given as the content of its file."""
    return play_point(_players.of(digest, lambda: read_content(content, name)), point, steps, limit)


def figures_of(result: Simulation) -> Figures:
    """The simulation's own figures, and a histogram of how long single searches took."""
    searches = [event.value for event in result.events if event.kind == "search"]
    counts = Counter(round(8 * math.log2(max(seconds, 1e-9))) for seconds in searches)
    return result.to_json() | {"search_times": sorted([2.0 ** (eighth / 8), count] for eighth, count in counts.items())}


def lowest(play: Callable[[float], Simulation], floor: float) -> Figures:
    """Walks down from ratio 1 until a budget is not enough, then halves the last step.

    So every ratio tried above the result works: a single success far below does not count. Nothing
    below the floor is tried.
    """
    tried: dict[float, str] = {}

    def serves(ratio: float) -> bool:
        tried[ratio] = play(ratio).status
        return tried[ratio] == "ok"

    good, bad = 1.0 + STRIDE, 0.0
    for stride in range(int(1 / STRIDE)):
        ratio = round(1.0 - stride * STRIDE, 6)
        if ratio < floor or not serves(ratio):
            bad = ratio
            break
        good = ratio
    while good <= 1.0 and good - bad > PRECISION:
        middle = (good + bad) / 2
        if middle >= floor and serves(middle):
            good = middle
        else:
            bad = middle
    status = "ok" if good <= 1.0 else tried.get(1.0, "out_of_memory")
    return {"status": status, "lowest": good if good <= 1.0 else None, "tried": sorted(tried.items())}


class _Players(threading.local):
    """The player that each thread used last."""

    def __init__(self) -> None:
        self.kept: tuple[object, Player] | None = None

    def of(self, key: object, read: Callable[[], Trace]) -> Player:
        if self.kept is None or self.kept[0] != key:
            self.kept = None  # free it first: two large ones may not fit in memory
            self.kept = key, player_of(read())
        return self.kept[1]


_players = _Players()


def _player(trace: Path) -> Player:
    return _players.of(trace, lambda: read_any(trace))


@contextlib.contextmanager
def _deaf_to_interrupts() -> Generator[None, None, None]:
    """Processes started meanwhile ignore interrupts too. Ctrl-C reaches all processes of a
    terminal; the first one ends the others."""
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # where no interrupt arrives, and no handler can be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
