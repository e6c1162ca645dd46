"""The model of moccasin.py: integers for when values enter and leave memory, for OR-tools CP-SAT.

A time is a stage and a position in it (constraint 1 there). An interval of a value begins with a
run of its node, or by bringing it in, and ends after a reader. If the plan to start from runs a
node more than C times, the node may run that often. So that plan is always a solution, and the best
solution is no worse than the best one with C.

Memory is written here as a constraint, because unknown integers are no schedule. For the plan to
start from, the timeline gives the values in memory.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from coop.plan.exact.solvers import Value, cp_model, run_cp
from coop.plan.model.graph import Graph
from coop.plan.model.paged import complete
from coop.plan.model.plan import PlanError, Step
from coop.plan.model.timeline import Moment, Timeline
from coop.plan.search.search import Search
from coop.sizes import format_bytes

_MANY = 300  # ends of an interval that are listed one by one; more are a range


def wanted(graph: Graph, reach: int) -> list[set[int]]:
    """For each node, the stages in which its outputs may be needed again: where a reader runs for
    the first time (reach 1), where a reader of a reader does (2), and so on; 0: in all later
    stages. A node without outputs is never needed again."""
    count = len(graph.nodes)
    if reach == 0:
        return [set(range(at + 1, count + 1)) if node.outputs else set() for at, node in enumerate(graph.nodes)]
    found: list[set[int]] = [set() for _ in range(count)]
    for value in graph.values:
        found[value.node].update(value.users, [count] if value.kept else [])
    for _ in range(reach - 1):
        found = [found[node].union(*(found[child] for child in graph.children[node])) for node in range(count)]
    return found


def _clock(stage: int, node: int) -> int:
    return stage * (stage + 1) // 2 + node


class _Span(NamedTuple):
    """An interval of a value, or the time at which a node runs. A fixed time is a number. None:
    always true."""

    start: Any
    end: Any
    used: Any
    paged: Any
    """Whether it begins by bringing the value in. None: it never does."""
    early: int
    late: int
    """Between which it starts."""


class Intervals:
    def __init__(
        self, search: Search, intervals: int, reach: int, steps: Sequence[Step], *, soft: bool = False
    ) -> None:
        """`soft`: the objective is memory, not the duration. Reruns of `steps` are always
        allowed."""
        self.search, self.graph = search, search.graph
        self.cp = cp_model()
        self.model: Any = self.cp.CpModel()
        count = len(self.graph.nodes)
        self.last = _clock(count, count)
        """The end of the step."""
        stays = self._stays(steps)
        self.limits = [max([intervals, *(len(stays[v]) for v in node.outputs)]) for node in self.graph.nodes]
        self.wanted = wanted(self.graph, reach)
        for moment in Timeline(self.graph, steps).moments:
            node = self._node(moment)
            if moment.stage > node:
                self.wanted[node].add(moment.stage)
        self.again = [[k for k in sorted(found) if self.graph.repeatable(n, k)] for n, found in enumerate(self.wanted)]
        self.runs: list[list[_Span]] = [[] for _ in self.graph.nodes]
        self.spans: list[list[_Span]] = [[] for _ in self.graph.values]
        self.out: dict[int, Any] = {}
        """Whether a value goes to storage."""
        self.costs: list[tuple[int, Any]] = []
        """Nanoseconds, and the literal that adds them."""
        self.covers: list[tuple[Any, _Span, _Span, bool]] = []
        """Literal, the interval that covers, the run that reads, and whether it overwrites."""
        for number in range(count):
            self._add_node(number)
        for number in range(len(self.graph.values)):
            self._add_readers(number)
        self._add_storage()
        self.capacity = self._add_memory(soft)
        self.unit = max(math.gcd(*(cost for cost, _ in self.costs)), 1)
        if soft:
            self.model.minimize(self.capacity)
        else:
            self.model.minimize(self._sum((cost // self.unit, literal) for cost, literal in self.costs))
        self.fits = not soft
        self.bound = 0
        """Nanoseconds; no solution takes less."""

    # --- variables ---------------------------------------------------------------------------------------------------

    def _among(self, times: Iterable[int]) -> Any:
        return self.model.new_int_var_from_domain(self.cp.Domain.from_values(sorted(times)), "")

    def _add_node(self, number: int) -> None:
        model, node = self.model, self.graph.nodes[number]
        first = _clock(number, number)
        again = [_clock(stage, number) for stage in self.again[number]]
        pages = [_clock(stage, number) for stage in sorted(self.wanted[number])] if self.search.paging else []
        self.runs[number].append(_Span(first, first + 1, None, None, first, first))
        for _ in range(min(self.limits[number] - 1, len(again))):
            start, used = self._among(again), model.new_bool_var("")
            model.add(start == again[0]).only_enforce_if(used.negated())
            self.costs.append((node.cost, used))
            self.runs[number].append(_Span(start, start + 1, used, None, again[0], again[-1]))
        for value in node.outputs:
            ends = self._ends(value, pages or again)
            self.spans[value].append(_Span(first, self._end(ends, first), None, None, first, first))
            for index in range(1, min(self.limits[number], 1 + len(pages or again))):
                run = self.runs[number][index] if index < len(self.runs[number]) else None
                self.spans[value].append(self._paged(value, run, pages, ends) if pages else self._made(run, ends))
            self._order(value)

    def _ends(self, number: int, starts: Sequence[int]) -> list[int]:
        """When intervals of a value can end: after a reader. If there are many, a whole range."""
        value = self.graph.values[number]
        first = _clock(value.node, value.node)
        found = {first + 1, *(time + 1 for time in starts)}
        for user in value.users:
            later = number not in self.graph.nodes[user].overwritten()
            found.update(_clock(stage, user) + later for stage in (user, *self.again[user]))
        if value.kept:
            found.add(self.last + 1)
        return sorted(time for time in found if time > first)

    def _end(self, ends: Sequence[int], first: int) -> Any:
        ends = [time for time in ends if time > first]
        return self.model.new_int_var(ends[0], ends[-1], "") if len(ends) > _MANY else self._among(ends)

    def _made(self, run: _Span | None, ends: Sequence[int]) -> _Span:
        """An interval that begins when the node runs again."""
        assert run is not None
        end = self._end(ends, run.early)
        self.model.add(end == run.early + 1).only_enforce_if(run.used.negated())
        return run._replace(end=end)

    def _paged(self, value: int, run: _Span | None, pages: Sequence[int], ends: Sequence[int]) -> _Span:
        """An interval that begins when the node runs again or when the value is brought in."""
        model, paging = self.model, self.search.paging
        assert paging is not None
        size = self.graph.values[value].bytes
        start, end = self._among(pages), self._end(ends, pages[0])
        used, paged = model.new_bool_var(""), model.new_bool_var("")
        model.add(start == pages[0]).only_enforce_if(used.negated())
        model.add(end == pages[0] + 1).only_enforce_if(used.negated())
        if run is None:
            model.add(used == paged)
        else:
            model.add(used == paged + run.used)
            model.add(start == run.start).only_enforce_if(run.used)
        if value not in self.out:
            self.out[value] = model.new_bool_var("")
            self.costs.append((paging.out_time(size), self.out[value]))
        model.add_implication(paged, self.out[value])
        self.costs.append((paging.in_time(size), paged))
        return _Span(start, end, used, paged, pages[0], pages[-1])

    # --- constraints -------------------------------------------------------------------------------------------------

    def _order(self, value: int) -> None:
        """One after the other. With paging, nodes with several outputs may leave some out, as
        their runs are shared."""
        spans, outputs = self.spans[value], self.graph.nodes[self.graph.values[value].node].outputs
        skip = self.search.paging is not None and len(outputs) > 1
        for index, span in enumerate(spans):
            for before in spans[:index] if skip else spans[max(index - 1, 0) : index]:
                both = [span.used] if before.used is None else [span.used, before.used]
                self.model.add(before.end <= span.start).only_enforce_if(both)
                if not skip and before.used is not None:
                    self.model.add_implication(span.used, before.used)

    def _add_readers(self, number: int) -> None:
        value = self.graph.values[number]
        for user in value.users:
            for run in self.runs[user]:
                self._cover(number, run, number in self.graph.nodes[user].overwritten())
        if value.kept:
            self._cover(number, _Span(self.last, self.last + 1, None, None, self.last, self.last), False)

    def _cover(self, number: int, run: _Span, overwrites: bool) -> None:
        model = self.model
        found = []
        for span in self.spans[number]:
            if span.early >= run.late:
                continue
            literal = model.new_bool_var("")
            found.append(literal)
            self.covers.append((literal, span, run, overwrites))
            if span.used is not None:
                model.add_implication(literal, span.used)
            if span.late >= run.early:
                model.add(span.start + 1 <= run.start).only_enforce_if(literal)
            if overwrites:
                model.add(span.end == run.start).only_enforce_if(literal)
            else:
                model.add(span.end >= run.start + 1).only_enforce_if(literal)
        model.add_exactly_one(found if run.used is None else [*found, run.used.negated()])

    def _add_storage(self) -> None:
        paging = self.search.paging
        if paging is not None and paging.capacity is not None:
            sizes = [(self.graph.values[value].bytes, literal) for value, literal in self.out.items()]
            unit = max(math.gcd(*(size for size, _ in sizes)), 1)
            self.model.add(self._sum((size // unit, literal) for size, literal in sizes) <= paging.capacity // unit)

    def _add_memory(self, soft: bool) -> Any:
        graph, model = self.graph, self.model
        parts: list[tuple[int, Any]] = []
        """Bytes, and while what."""
        for value, spans in zip(graph.values, self.spans, strict=True):
            parts += [(value.bytes, self._interval(span)) for span in spans if value.bytes]
        for node, runs in zip(graph.nodes, self.runs, strict=True):
            parts += [(node.scratch, self._interval(run)) for run in runs if node.scratch]
        least, begin = min(graph.base), 0
        for stage, (now, then) in enumerate(zip(graph.base, (*graph.base[1:], None), strict=True)):
            if now != then:
                end = min(_clock(stage, stage), self.last) + 1
                if now > least:
                    parts.append((now - least, model.new_interval_var(begin, end - begin, end, "")))
                begin = end
        unit = max(math.gcd(*(size for size, _ in parts)), 1)
        room = (self.search.budget - least) // unit
        if room < 0:
            raise PlanError(
                f"sources alone take {format_bytes(least)}, and the budget is {format_bytes(self.search.budget)}"
            )
        most = max(room, sum(size for size, _ in parts) // unit)
        capacity = model.new_int_var(room, most, "") if soft else room
        model.add_cumulative([interval for _, interval in parts], [size // unit for size, _ in parts], capacity)
        self.room = room
        return capacity

    def _interval(self, span: _Span) -> Any:
        fixed = isinstance(span.start, int)
        size = span.end - span.start if fixed else self.model.new_int_var(1, self.last + 1 - span.early, "")
        if span.used is None:
            return self.model.new_interval_var(span.start, size, span.end, "")
        return self.model.new_optional_interval_var(span.start, size, span.end, span.used, "")

    def _sum(self, terms: Iterable[tuple[int, Any]]) -> Any:
        factors, literals = zip(*terms, strict=True) if (terms := list(terms)) else ((), ())
        return self.cp.LinearExpr.weighted_sum(literals, factors)

    # --- solutions ---------------------------------------------------------------------------------------------------

    def run(self, seconds: float, steps: Sequence[Step]) -> tuple[Sequence[Step], bool]:
        """The best steps, these if there are no others, and whether no solution is better."""
        self._hint(steps)
        heard = (lambda value: self.search.offer_steps(self._steps(value))) if self.fits else None
        # Linear relaxations give weak bounds for intervals, and are slow.
        solver, status = run_cp(self.search, self.model, seconds=seconds, heard=heard, linearization_level=0)
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return steps, False
        found = self._steps(solver.value)
        self.fits = self.fits or solver.value(self.capacity) == self.room
        if self.fits:
            self.search.offer_steps(found)
            self.bound = self.graph.cost + round(solver.best_objective_bound) * self.unit
        return found, status == self.cp.OPTIMAL

    def _steps(self, value: Value) -> list[Step]:
        events = [
            (value(run.start), Step("compute", number))
            for number, runs in enumerate(self.runs)
            for run in runs
            if run.used is None or value(run.used)
        ]
        events += [
            (value(span.start), Step("in", number))
            for number, spans in enumerate(self.spans)
            for span in spans
            if span.paged is not None and value(span.paged)
        ]
        return complete(self.graph, [step for _, step in sorted(events)])

    def _node(self, moment: Moment) -> int:
        """The node that runs, or that makes the value that is brought in."""
        return moment.number if moment.kind == "compute" else self.graph.values[moment.number].node

    def _hint(self, steps: Sequence[Step]) -> None:
        told: dict[int, tuple[Any, int]] = {}

        def tell(variable: Any, value: int) -> None:
            if variable is not None and not isinstance(variable, int):
                told[variable.index] = variable, value

        def says(variable: Any) -> int:
            return 1 if variable is None else variable if isinstance(variable, int) else told[variable.index][1]

        stays = self._stays(steps)
        for number, node in enumerate(self.graph.nodes):
            for index, run in enumerate(self.runs[number][1:], 1):
                stay = stays[node.outputs[0]][index : index + 1]
                used = bool(stay) and not stay[0].paged
                tell(run.used, used)
                tell(run.start, stay[0].start if used else run.early)
            for value in node.outputs:
                for index, span in enumerate(self.spans[value]):
                    stay = stays[value][index : index + 1]
                    tell(span.used, bool(stay))
                    tell(span.start, stay[0].start if stay else span.early)
                    tell(span.end, stay[0].end if stay else span.early + 1)
                    tell(span.paged, bool(stay) and stay[0].paged)
                if value in self.out:
                    tell(self.out[value], any(stay.paged for stay in stays[value]))
        for literal, span, run, overwrites in self.covers:
            start, end, now = says(span.start), says(span.end), says(run.start)
            there = start < now and (end == now if overwrites else end > now)
            tell(literal, bool(says(span.used) and says(run.used) and there))
        for variable, value in told.values():
            self.model.add_hint(variable, value)

    def _stays(self, steps: Sequence[Step]) -> list[list["_Stay"]]:
        """For each value, when it is in memory, by these steps."""
        timeline = Timeline(self.graph, complete(self.graph, steps))
        starts = {moment.at: _clock(moment.stage, self._node(moment)) for moment in timeline.moments}
        times: list[int] = []
        """The time of each step, and of the end. A value that is freed leaves right after the
        moment before."""
        now = 0
        for at in range(len(timeline.steps)):
            now = starts.get(at, now)
            times.append(now + (at not in starts))
        times.append(self.last + 1)
        found: list[list[_Stay]] = [[] for _ in self.graph.values]
        for value, begin, end in timeline.residencies():
            found[value].append(_Stay(times[begin], times[end], timeline.steps[begin][0] == "in"))
        return found


class _Stay(NamedTuple):
    start: int
    end: int
    paged: bool
