"""checkmate: optimal recomputation as a mixed-integer program.

Jain et al., "Checkmate: Breaking the memory wall with optimal tensor rematerialization", MLSys
2020, sections 4 (the program) and 5 (its relaxation, rounded).

A step of n nodes has n stages. In stage t, nodes are run again in order, each at most once. Then
node t runs for the first time. The cost of all runs is minimised. Variables:

    R[t,k]      node k runs in stage t
    S[t,v]      value v is in memory when stage t begins
    F[t,v,k]    value v is freed right after k ran in stage t
    U[t,k]      bytes in memory while k runs, counted along the stage from S, R and F

Constraints:

    R[t,k] <= R[t,maker(v)] + S[t,v]      what a node reads is in memory
    S[t+1,v] <= S[t,v] + R[t,maker(v)]    what a stage begins with was there before, or was made
    U[t,k] <= budget
    F[t,v,k] <= 1 - S[t+1,v], and 1 - R[t,j] for every later reader j
    sum over k of F[t,v,k] <= 1
    h F[t,v,k] <= h - (1 - R[t,k]) - S[t+1,v] - sum over j of R[t,j], h: the number of these hazards

What differs: sources are counted once, and only while they are in memory. Outputs of one node are
values of their own. A value that an op overwrites is gone, and its bytes are reused. Scratch counts
while its node runs. Some nodes cannot be run again. One more stage brings back what outlives the
step. The published model counts a value twice if it is computed while it is in memory; here it is
not computed then.

`checkmate` solves the program exactly. `rounded` rounds the relaxation at several thresholds and
for several shares of the budget, and checks each result: published roundings were over the budget
by up to 54 %. `relaxed` is the bound of the relaxation alone. Not done: randomised rounding. All
are for small graphs: the program grows with n (n + m). Memory is counted by U, because the
program's unknowns are no schedule; the resulting plan is checked.
"""

import math
from collections.abc import Iterable

from coop.plan.exact.solvers import Linear, math_opt
from coop.plan.model.plan import PlanError
from coop.plan.model.schedule import prune
from coop.plan.search.greedy import greedy
from coop.plan.search.search import Search

_LARGEST = 4_000_000  # coefficients: the relaxation alone takes some minutes
_THRESHOLDS = tuple(i / 10 for i in range(1, 10))
_MARGINS = (0.9, 0.95, 0.85, 1.0, 0.8)
"""Shares of the budget at which the relaxation is rounded. The paper has the first."""
_SLACK = 1e-6
_FORM = "for plans of Checkmate's form"


def checkmate(search: Search) -> None:
    """The exact program, after its relaxation and the roundings of that."""
    search.about["bound"] = _FORM
    model = _Model(search)
    _start(search)
    search.stage = "relaxation"
    relaxed(search, seconds=search.seconds_left(0.3), model=model)
    if search.proven:
        return
    search.stage = "rounding"
    _round(search, model, _MARGINS[:1])
    search.stage = "branch and bound"
    model.make_whole()
    result = model.linear.run(search, search.seconds_left())
    least = float(result.termination.objective_bounds.dual_bound) * model.linear.scale
    if math.isfinite(least):
        search.raise_bound(search.graph.cost * (1 - _SLACK) + least)
    values = model.linear.values(result)
    if values is not None:
        search.offer(model.sequence(values, 0.5))
    reason = result.termination.reason
    if reason == math_opt().TerminationReason.OPTIMAL:
        search.prove()
    elif reason == math_opt().TerminationReason.INFEASIBLE:
        raise PlanError(f"there is no plan of Checkmate's form for {search.budget} bytes")


def rounded(search: Search) -> None:
    """The relaxation, rounded."""
    search.stage = "relaxation"
    search.about["bound"] = _FORM
    model = _Model(search)
    relaxed(search, seconds=search.seconds_left(0.5), model=model)
    search.stage = "rounding"
    _round(search, model, _MARGINS)
    if search.duration is None:
        raise PlanError(
            f"no rounding of the relaxation fits into {search.budget} bytes. Tip: the planners checkmate and auto look further"
        )


def relaxed(search: Search, *, seconds: float, model: "_Model | None" = None) -> float | None:
    """Nanoseconds: the least duration that the relaxation allows. Also raises the search's bound.
    None: not found in time."""
    model = model or _Model(search)
    least = model.linear.least(search, seconds)
    if least is None:
        return None
    if least == float("inf"):
        raise PlanError(f"there is no plan of Checkmate's form for {search.budget} bytes")
    search.raise_bound(search.graph.cost * (1 - _SLACK) + least)
    return search.graph.cost + least


def _start(search: Search) -> None:
    search.stage = "greedy"
    try:
        search.offer(greedy(search.graph, search.budget))
    except PlanError as error:
        search.about["start"] = str(error)


def _round(search: Search, model: "_Model", margins: Iterable[float]) -> None:
    for margin in margins:
        if not search.seconds_left():
            return
        model.limit(margin)
        values = model.linear.values(model.linear.run(search, search.seconds_left(0.5)))
        if values is None:
            continue
        for threshold in _THRESHOLDS:
            search.offer_if_legal(model.sequence(values, threshold))
    model.limit(1.0)


class _Model:
    def __init__(self, search: Search) -> None:
        self.graph, self.budget = search.graph, search.budget
        nodes, values = self.graph.nodes, self.graph.values
        edges = sum(len(node.inputs) for node in nodes)
        size = len(nodes) * (len(nodes) + len(values) + 4 * edges) // 2
        if size > _LARGEST:
            raise PlanError(
                f"Checkmate's program for a step of {len(nodes)} nodes and {edges} edges has {size / 1e6:.1f} million "
                f"coefficients, too many to solve. Tip: the planner auto has no such limit"
            )
        self.linear = Linear()
        self.stages = range(len(nodes) + 1)
        self.runs: list[dict[int, int]] = []
        """For each stage, nodes that may be run again in it: R."""
        self.starts: list[dict[int, int]] = []
        """For each stage, values that may be in memory when it begins: S."""
        for t in self.stages:
            again = [k for k in range(t) if self.graph.repeatable(k, t)]
            self.runs.append({k: self.linear.variable(0, 1, nodes[k].cost) for k in again})
            self.starts.append({v: self.linear.variable(0, 1, 0) for v, value in enumerate(values) if value.node < t})
        self.whole = len(self.linear.costs)
        """Variables before this are integers in the exact program. With F <= R, the others then are
        too."""
        self.frees: list[tuple[int, int]] = []
        self.room: list[tuple[int, int]] = []
        """Variables of bytes, and the bytes of sources beside them."""
        for t in self.stages:
            self._add_needs(t)
            self._add_memory(t)

    def _there(self, t: int, value: int) -> list[tuple[int, float]] | None:
        """The variables of which one has to be 1 for a value to be read in a stage. None: it is
        computed there for the first time."""
        maker = self.graph.values[value].node
        if maker >= t:
            return None
        terms = [(self.starts[t][value], 1.0)]
        if maker in self.runs[t]:
            terms.append((self.runs[t][maker], 1.0))
        return terms

    def _add_needs(self, t: int) -> None:
        nodes, values, row = self.graph.nodes, self.graph.values, self.linear.row
        for k, run in self.runs[t].items():
            for value in nodes[k].inputs:
                row([*(self._there(t, value) or ()), (run, -1.0)], low=0.0)
            if len(nodes[k].outputs) == 1:  # a value in memory is not computed again
                row([(run, 1.0), (self.starts[t][nodes[k].outputs[0]], 1.0)], high=1.0)
        wanted = nodes[t].inputs if t < len(nodes) else [v for v, value in enumerate(values) if value.kept]
        for value in wanted:
            row(self._there(t, value) or (), low=1.0)
        if t == len(nodes):
            return
        for value, later in self.starts[t + 1].items():
            there = self._there(t, value)
            if there is not None:
                row([*there, (later, -1.0)], low=0.0)
            for k in values[value].users:
                if value in nodes[k].overwritten():
                    if k == t:
                        self.linear.highs[later] = 0
                    elif k in self.runs[t]:
                        row([(later, 1.0), (self.runs[t][k], 1.0)], high=1.0)

    def _add_memory(self, t: int) -> None:
        """Bytes are counted in budgets."""
        nodes, values, linear = self.graph.nodes, self.graph.values, self.linear
        unit = max(self.budget, 1)
        sizes = [value.bytes / unit for value in values]
        before = [(start, sizes[v]) for v, start in self.starts[t].items()]
        freed: dict[int, list[int]] = {}
        scratch = 0.0
        for k in [*self.runs[t], *([t] if t < len(nodes) else [])]:
            node, run = nodes[k], self.runs[t].get(k)
            level = linear.variable(0, (self.budget - self.graph.base[t]) / unit, 0)
            self.room.append((level, self.graph.base[t]))
            terms, fixed = [*before, (level, -1.0)], -scratch
            more = node.scratch / unit - sum(sizes[v] for v in node.overwritten())
            for v in node.outputs:
                if run is None or len(node.outputs) == 1:
                    more += sizes[v]
                    continue
                made = linear.variable(0, 1, 0)  # it was not in memory; of several outputs, some may be
                linear.row([(made, 1.0), (self.starts[t][v], 1.0), (run, -1.0)], low=0.0)
                terms.append((made, sizes[v]))
            if run is None:
                fixed += more
            else:
                terms.append((run, more))
            linear.row(terms, low=-fixed, high=-fixed)
            before = [(level, 1.0)]
            if run is None:
                scratch = node.scratch / unit
            else:
                scratch = 0.0
                if node.scratch:
                    before.append((run, -node.scratch / unit))
            for v in {*node.inputs, *node.outputs} - {*node.overwritten()}:
                before.append((self._free(t, v, k, freed), -sizes[v]))
        for several in freed.values():
            linear.row([(free, 1.0) for free in several], high=1.0)
        if t == len(nodes):
            linear.row([*before], high=(self.budget - self.graph.base[t]) / unit)

    def _free(self, t: int, value: int, k: int, freed: dict[int, list[int]]) -> int:
        """The variable for a value that leaves right after k has run."""
        linear, run = self.linear, self.runs[t].get(k)
        free = linear.variable(0, 1, 0)
        freed.setdefault(value, []).append(free)
        hazards: list[tuple[int, float]] = []
        if t == len(self.graph.nodes):
            linear.highs[free] = float(not self.graph.values[value].kept)
        else:
            hazards.append((self.starts[t + 1][value], 1.0))
        for j in self.graph.values[value].users:
            if j == t and j > k:
                linear.highs[free] = 0
            elif j > k and j in self.runs[t]:
                hazards.append((self.runs[t][j], 1.0))
        for hazard in hazards:
            linear.row([(free, 1.0), hazard], high=1.0)
        if run is not None:  # all together, as in the paper, so that the relaxation is the published one
            self.frees.append((free, run))
            most = len(hazards) + 1.0
            linear.row([(free, most), (run, -1.0), *hazards], high=most - 1)
        return free

    def make_whole(self) -> None:
        self.linear.whole = [number < self.whole for number in range(len(self.linear.costs))]
        for free, run in self.frees:
            self.linear.row([(free, 1.0), (run, -1.0)], high=0.0)

    def limit(self, share: float) -> None:
        """Bounds memory by a share of the budget."""
        for level, base in self.room:
            self.linear.highs[level] = max((share * self.budget - base) / max(self.budget, 1), 0.0)

    def sequence(self, found: list[float], threshold: float) -> list[int]:
        """Rounds what is in memory at the beginning of each stage, and runs the fewest nodes that
        give that."""
        nodes, values, graph = self.graph.nodes, self.graph.values, self.graph
        there = [{v for v, start in starts.items() if found[start] > threshold} for starts in self.starts]
        for t in range(len(nodes)):  # a value that was not in memory and cannot be computed is not there
            for v in list(there[t + 1]):
                if v not in there[t] and values[v].node < t and not graph.repeatable(values[v].node, t):
                    there[t + 1].discard(v)
        sequence: list[int] = []
        for t in self.stages:
            wanted = set(nodes[t].inputs) if t < len(nodes) else {v for v, value in enumerate(values) if value.kept}
            if t < len(nodes):
                wanted |= {v for v in there[t + 1] if values[v].node < t}
            again: set[int] = set()
            stack = [v for v in wanted if v not in there[t]]
            while stack:
                maker = values[stack.pop()].node
                if maker < t and maker not in again:
                    again.add(maker)
                    stack.extend(v for v in nodes[maker].inputs if v not in there[t])
            sequence += [*sorted(again), *([t] if t < len(nodes) else [])]
        try:
            return prune(graph, sequence)
        except PlanError:
            return sequence
