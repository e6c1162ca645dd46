"""treeverse: checkpoints for chains, with the least recomputation, by dynamic programming.

Griewank and Walther, "Revolve", 2000, is optimal for stages of equal size and cost. Ours are not
equal, so this is the recurrence of Beaumont et al., "Optimal checkpointing for heterogeneous
chains", 2019, with bytes rounded to some hundred slots. best(s, t, m) is the least cost of going
backward through stages t to s, if the inputs of stage s are in memory and m bytes are left for
everything else. It is the smaller of two costs:

    run stage s with all that its backward reads; then best(s + 1, t, m - that)
    run stages s to r - 1 and keep only what stage r reads; then best(r, t, m - that), and
        then best(s, r - 1, m)

This is optimal among persistent schedules (a value that is kept stays until backward reaches it),
except that bytes are rounded to slots, and bytes that two stages share count twice.

What differs: stages are groups of nodes between cuts of the forward pass. One value crosses a cut,
or two if there are not enough such cuts (a recurrent network's state is a pair). Values that cross
many cuts (masks, long skips) are kept all the time. The outputs of the backward pass are counted as
they are in the graph. A step without such cuts is not a chain, and is refused.

The recurrence adds up the needs of its parts, because there is no schedule before it is solved. The
timeline gives the needs of a part, and of the final sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coop.plan.heuristic.chen import Forward
from coop.plan.model.graph import Graph
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import peak_alone, profile, prune
from coop.plan.search.search import Search
from coop.sizes import format_bytes

_SLOTS = 256
_STAGES = 100
"""At most. The time grows with its third power."""
_FEWEST = 3
_LONG = 8
"""Values that live across more than one in so many of the forward nodes are kept all the time."""


def treeverse(search: Search) -> None:
    """The cheapest plan that fits. The recurrence's bytes are not exact, so several of its budgets
    are tried."""
    stages = _Stages(search.graph)
    table = _Table(stages.stages, search.budget)
    low, high = table.least, table.most
    least: int | None = None
    tried: set[int] = set()
    # The peak does not always rise from one slot to the next: after bisection, the next ones above
    # are tried too.
    while low is not None and low <= high:
        slots = (low + high) // 2
        tried.add(slots)
        peak = _offer(search, stages, table, slots)
        least = peak if least is None or peak < least else least
        low, high = (slots + 1, high) if peak <= search.budget else (low, slots - 1)
    if low is not None:
        for slots in range(low, min(low + 12, table.most + 1)):
            if slots not in tried and search.seconds_left():
                _offer(search, stages, table, slots)
    if search.duration is None:
        needs = f"needs {format_bytes(least)} at best" if least is not None else "has no room for any one of them"
        raise PlanError(
            f"recomputing {len(stages.stages)} stages of the forward pass {needs}, and the budget is "
            f"{format_bytes(search.budget)}. Tip: treewidth and auto recompute parts of stages"
        )


def _offer(search: Search, stages: "_Stages", table: "_Table", slots: int) -> int:
    """The peak of the plan for so many slots."""
    sequence = prune(search.graph, stages.sequence(table.actions(slots)))
    try:
        peak = profile(search.graph, sequence).peak
    except PlanError as error:  # backward overwrites an input of a stage that would run again
        raise PlanError(f"the step is no chain: {error}. Tip: treewidth and auto plan any step") from None
    if peak <= search.budget and search.offer(sequence):
        search.about["stages"] = len(stages.stages)
    return peak


@dataclass(frozen=True)
class Stage:
    """Costs in nanoseconds, sizes in bytes."""

    reads: int
    """The values that cross the cut before it."""
    inner: int
    """Those of its outputs that its backward reads."""
    more: int
    """What it keeps if it runs with everything that its backward and the next stage read."""
    first: int
    """Cost of its first run."""
    on: int
    """Cost of making what the next stage reads."""
    again: int
    """Cost of making what its backward reads."""
    both: int
    on_peak: int
    """While it runs for the inputs of the next stage, without its own inputs."""
    again_peak: int
    waiting: int
    """Sources, and outputs of backward that are still needed, when backward reaches it."""
    backward: int
    """The most of that while backward is in this stage, with the outputs and the scratch of its
    nodes."""


class _Stages:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.forward = graph, Forward(graph)
        self.pinned = self._pinned()
        self.cuts = [0, *self._cuts(), self.forward.end]
        self.boundaries = [self._crossing(cut) for cut in self.cuts]
        count = len(self.cuts) - 1
        self.begins = self._begins()
        """Where backward reaches each stage."""
        self.inner = [self._inner(stage) for stage in range(count)]
        self.stages = list(self._measured())

    def _pinned(self) -> set[int]:
        end = self.forward.end
        long = max(end // _LONG, _LONG)
        found = {
            number
            for number, value in enumerate(self.graph.values)
            if value.node < end and self.forward.reach(number) - value.node > long
        }
        bytes_ = sum(self.graph.values[v].bytes for v in found)
        if 4 * bytes_ > self.forward.sums[-1]:
            raise PlanError(
                f"the step is no chain: {len(found)} values of {format_bytes(bytes_)} are read far from where they are "
                f"made, and backward reads {format_bytes(self.forward.sums[-1])} in all. "
                f"Tip: treewidth and auto plan any step"
            )
        return found

    def _crossing(self, cut: int) -> set[int]:
        return {v for v in self._near(cut) if self.forward.reach(v) >= cut and v not in self.pinned}

    def _near(self, cut: int) -> Iterator[int]:
        """Values that are not kept all the time can cross a cut only if they were made at most this
        far before it."""
        long = max(self.forward.end // _LONG, _LONG)
        for node in self.graph.nodes[max(cut - long, 0) : cut]:
            yield from node.outputs

    def _cuts(self) -> list[int]:
        found: list[int] = []
        sums, end = self.forward.sums, self.forward.end
        part = max(sums[-1] / _STAGES, 1)
        for width in (1, 2):
            thin: dict[int, tuple[int, int]] = {}
            for cut in range(1, end):
                bytes_ = self.forward.crossing[cut]
                if bytes_ is not None and sums[cut] and 0 < len(self._crossing(cut)) <= width:
                    key = int(sums[cut] / part)
                    thin[key] = min(thin.get(key, (bytes_, cut)), (bytes_, cut))
            found = sorted(cut for _, cut in thin.values())
            largest = max(np.diff([sums[cut] for cut in (0, *found, end)]))
            if len(found) >= _FEWEST and 3 * largest <= sums[-1]:
                return found
        raise PlanError(
            f"the step is no chain: of {end} nodes of its forward pass, there are {len(found)} places that no more "
            f"than two values cross, and {_FEWEST} are needed with no more than a third of the bytes between two. "
            f"Tip: treewidth and auto plan any step"
        )

    def _begins(self) -> list[int]:
        end, n = self.forward.end, len(self.graph.nodes)
        begins: list[int] = []
        for stage, (cut, after) in enumerate(zip(self.cuts, self.cuts[1:], strict=False)):
            own = {v for node in self.graph.nodes[cut:after] for v in node.outputs} - self.pinned
            first = min(self._late(own - self.boundaries[stage + 1]), default=n)
            if first == n:
                first = min(self._late(self.boundaries[stage]), default=n)
            begins.append(min([first, *begins[-1:]]))
        begins[-1] = end
        return begins

    def _late(self, values: set[int]) -> Iterator[int]:
        """The first node in backward that reads one of these values."""
        for value in values:
            for user in self.graph.values[value].users:
                if user >= self.forward.end:
                    yield user
                    break

    def _inner(self, stage: int) -> set[int]:
        found = set()
        for node in self.graph.nodes[self.cuts[stage] : self.cuts[stage + 1]]:
            for value in node.outputs:
                users = self.graph.values[value].users
                crosses = value in self.boundaries[stage + 1]
                last = self.begins[stage] if crosses else self.forward.end
                if value not in self.pinned and users and users[-1] >= last:
                    found.add(value)
        return found

    def _measured(self) -> Iterator[Stage]:
        graph, values = self.graph, self.graph.values
        pinned = sum(values[v].bytes for v in self.pinned)
        waiting, later = self._later()
        ends = [len(graph.nodes), *self.begins]
        for stage, inner in enumerate(self.inner):
            after = self.boundaries[stage + 1]
            on, on_peak = self._run(stage, after)
            again, again_peak = self._run(stage, inner)
            both, both_peak = self._run(stage, inner | after)
            begin, end = self.begins[stage], max(ends[stage], self.begins[stage] + 1)
            yield Stage(
                reads=sum(values[v].bytes for v in self.boundaries[stage]),
                inner=sum(values[v].bytes for v in inner),
                more=sum(values[v].bytes for v in inner | after),
                first=sum(node.cost for node in graph.nodes[self.cuts[stage] : self.cuts[stage + 1]]),
                on=on,
                again=again,
                both=both,
                on_peak=on_peak,
                again_peak=max(again_peak, both_peak),
                waiting=pinned + waiting[begin],
                backward=pinned + max(later[begin:end]),
            )

    def _run(self, stage: int, wanted: set[int]) -> tuple[int, int]:
        """Cost and peak of the nodes of a stage that make some values."""
        nodes = self.graph.nodes
        needed, chosen = set(wanted), []
        for number in range(self.cuts[stage + 1] - 1, self.cuts[stage] - 1, -1):
            if not needed.isdisjoint(nodes[number].outputs):
                chosen.append(number)
                needed.update(nodes[number].inputs)
        return sum(nodes[number].cost for number in chosen), peak_alone(self.graph, chosen[::-1], wanted)

    def _later(self) -> tuple[list[int], list[int]]:
        """Bytes before and while each node runs, and at the end, without those that the forward
        pass makes."""
        graph, end = self.graph, self.forward.end
        sizes = [value.bytes if value.node >= end else 0 for value in graph.values]
        later = replace(graph, values=tuple(replace(v, bytes=s) for v, s in zip(graph.values, sizes, strict=True)))
        timeline = profile(later, range(len(graph.nodes)))
        starts = zip(graph.base, timeline.at_the_start(), strict=True)
        before = [base + sum(sizes[value] for value in memory) for base, memory in starts]
        return before, [*timeline.memory, timeline.end]

    def sequence(self, actions: list[tuple[str, int]]) -> list[int]:
        found: list[int] = []
        at = 0
        for what, stage in actions:
            if what == "backward":
                after = self.begins[stage - 1] if stage else len(self.graph.nodes)
                found += range(at, after)
                at = max(at, after)
                continue
            begin, end = self.cuts[stage], self.cuts[stage + 1]
            if begin == at:
                found += range(begin, end)
                at = end
            else:
                found += (node for node in range(begin, end) if self._repeats(node, at))
        return found

    def _repeats(self, node: int, at: int) -> bool:
        return self.forward.until[node] >= at and self.pinned.isdisjoint(self.graph.nodes[node].outputs)


class _Table:
    """best(s, t, m) for all stages s <= t and numbers of slots m."""

    def __init__(self, stages: list[Stage], budget: int) -> None:
        self.stages = stages
        # More than the budget, because sizes are rounded up and some are counted twice.
        self.unit = max(budget / _SLOTS, 1.0)
        self.most = int(1.5 * budget / self.unit)
        self.slots = np.arange(self.most + 1)
        count = len(stages)
        self.best = np.full((count, count, self.most + 1), np.inf)
        """Indexed by stages s and t."""
        self.beyond = np.full((count, count, self.most + 1), np.inf)
        """The same by t and s, when the inputs of stage s take some of the slots."""
        for t in range(count):
            for s in range(t, -1, -1):
                self._fill(s, t)
        fits = np.flatnonzero(np.isfinite(self.best[0, count - 1]))
        self.least = int(fits[0]) if len(fits) else None

    def _rounded(self, bytes_: int) -> int:
        return int(-(-bytes_ // self.unit))

    def _fill(self, s: int, t: int) -> None:
        here = self.best[s, t]
        here[:] = self._all(s, t)
        if s < t:
            np.minimum(here, self._splits(s, t).min(axis=0), out=here)
        taken = self._rounded(self.stages[s].reads)
        self.beyond[t, s, taken:] = here[: len(here) - taken]

    def _all(self, s: int, t: int) -> NDArray[np.float64]:
        """Stage s runs with all that its backward reads."""
        stage, last = self.stages[s], self.stages[t]
        is_first = t == len(self.stages) - 1
        least = self._rounded(max(last.waiting + stage.again_peak, stage.inner + stage.backward))
        found = np.full(self.most + 1, np.inf)
        if s == t:
            found[least:] = stage.first if is_first else stage.again
        else:
            taken = self._rounded(stage.more)
            found[taken:] = self.best[s + 1, t, : len(found) - taken] + (stage.first if is_first else stage.both)
            found[:least] = np.inf
        return found

    def _splits(self, s: int, t: int) -> NDArray[np.float64]:
        """For each r from s + 1 to t: only the inputs of stage r stay."""
        run, last = self.stages[s:t], self.stages[t]
        is_first = t == len(self.stages) - 1
        costs = np.cumsum([stage.first if is_first else stage.on for stage in run], dtype=np.float64)
        peaks = [stage.on_peak + (stage.reads if i else 0) for i, stage in enumerate(run)]
        least = [self._rounded(last.waiting + int(peak)) for peak in np.maximum.accumulate(peaks)]
        found: NDArray[np.float64] = self.beyond[t, s + 1 : t + 1] + self.best[s, s:t] + costs[:, None]
        found[self.slots[None, :] < np.array(least)[:, None]] = np.inf
        return found

    def actions(self, slots: int) -> list[tuple[str, int]]:
        """What to run, in order: stages, and the backward of stages."""
        found: list[tuple[str, int]] = []
        stack: list[tuple[str, int, int, int]] = [("solve", 0, len(self.stages) - 1, slots)]
        while stack:
            what, s, t, m = stack.pop()
            if what != "solve":
                found.append((what, s))
            elif self._all(s, t)[m] <= self.best[s, t, m]:
                found.append(("run", s))
                stack.append(("backward", s, s, 0))
                if s < t:
                    stack.append(("solve", s + 1, t, m - self._rounded(self.stages[s].more)))
            else:
                r = s + 1 + int(np.argmin(self._splits(s, t)[:, m]))
                found += [("run", stage) for stage in range(s, r)]
                stack.append(("solve", s, r - 1, m))
                stack.append(("solve", r, t, m - self._rounded(self.stages[r].reads)))
        return found
