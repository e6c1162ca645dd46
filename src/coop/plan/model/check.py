"""The checker: whether a plan is legal. Every plan passes it before it is returned.

Rules:
1. A node is computed when all its inputs are in memory.
2. Nodes are computed for the first time in the order of the graph, each of them. A node that cannot
   be run again runs once. A node that reads a source is not run again after that source was
   overwritten.
3. Bytes in memory never exceed the budget: sources, values, and while a node runs its outputs and
   scratch. An output that takes over the bytes of an input needs none of its own, and that input
   is gone.
4. Only what is in memory is freed or paged out. Only what was paged out comes in. Storage holds no
   more than it can.
5. At the end, everything that outlives the step is in memory.

This is the only place in Python that defines what is legal. Planners and followers of a plan call
it. The rules 1, 2, 4 and 5 share no code with any planner: they keep their own account of what is
in memory. For rule 3, bytes are those of the timeline (timeline.py), as everywhere. Tests compare
the timeline with a brute-force definition, and this checker with an exhaustive search.

A plan from a file comes without its graph. `check_followable` checks what can be checked without
it: rules 2 and 4, and rule 1 for the values that nodes overwrite.
"""

import dataclasses
from dataclasses import dataclass, replace

from coop.plan.model.addresses import overlap
from coop.plan.model.graph import NONE, Graph
from coop.plan.model.plan import Plan, PlanError, Step, bare_graph
from coop.plan.model.timeline import Timeline, timeline_of
from coop.sizes import format_bytes
from coop.trace.content import MOST, is_rate, is_whole
from coop.trace.paging import Paging


@dataclass(frozen=True)
class Checked:
    duration: int
    """Of all computations and transfers, one after the other. Nanoseconds."""
    peak: int
    computing: int
    """Nanoseconds of it."""
    paged_out: int
    """Bytes."""
    paged_in: int
    stored: int
    """The most bytes that storage held at once."""


def check(plan: Plan, graph: Graph, *, budget: int | None = None, paging: Paging | None = None) -> Checked:
    """Raises PlanError, with the step's number, unless the plan is legal in its own budget, or in
    this one.

    Without `paging`, a plan that pages is not.
    """
    check_same_step(plan, graph.fingerprint)
    run = _Run(graph, paging)
    run.all(plan.steps)
    timeline = Timeline(graph, plan.steps)
    limit = plan.budget if budget is None else budget
    for moment in timeline.over(limit):
        raise PlanError(
            f"step {moment.at} ({moment.kind} {moment.number}) cannot be carried out: rule 3: {moment.bytes} bytes are in "
            f"memory, and the budget is {limit}"
        )
    if timeline.end > limit:
        raise PlanError(f"rule 3: {timeline.end} bytes are in memory at the end, and the budget is {limit}")
    duration = run.computing + run.transfers
    return Checked(duration, timeline.peak, run.computing, run.out, run.back, run.stored_peak)


def check_same_step(plan: Plan, fingerprint: str) -> None:
    """Raises PlanError if the plan is for the graph of another step."""
    if plan.graph != fingerprint:
        raise PlanError(f"the plan is for another step: its graph is {plan.graph}, and this one is {fingerprint}")


class _Run:
    """Carries out a plan step by step, and refuses steps that break rules 1, 2, 4 and 5."""

    def __init__(self, graph: Graph, paging: Paging | None) -> None:
        self.graph, self.paging = graph, paging
        self.memory: set[int] = set()
        self.stored: set[int] = set()
        self.stored_bytes = self.stored_peak = 0
        self.next = 0
        self.computing = self.transfers = self.out = self.back = 0

    def all(self, steps: tuple[Step, ...]) -> None:
        for number, (kind, what) in enumerate(steps):
            try:
                limit = len(self.graph.nodes if kind == "compute" else self.graph.values)
                if not 0 <= what < limit:
                    raise PlanError(f"there is no {'node' if kind == 'compute' else 'value'} {what}")
                match kind:
                    case "compute":
                        self.compute(what)
                    case "free":
                        self.leave(what)
                    case "out":
                        self.page_out(what)
                    case "in":
                        self.page_in(what)
                    case _:
                        raise PlanError("no such kind of step")
            except PlanError as error:
                raise PlanError(f"step {number} ({kind} {what}) cannot be carried out: {error}") from None
        if self.next < len(self.graph.nodes):
            raise PlanError(f"rule 2: node {self.next} is never computed")
        for number, value in enumerate(self.graph.values):
            if value.kept and number not in self.memory:
                raise PlanError(f"rule 5: value {number} is not in memory at the end")

    def compute(self, number: int) -> None:
        node = self.graph.nodes[number]
        if number > self.next:
            raise PlanError(f"rule 2: the program has only come to node {self.next}")
        if number < self.next and node.last is not None and self.next > node.last:
            raise PlanError("rule 2: it cannot be run again")
        for value in node.inputs:
            if value not in self.memory:
                raise PlanError(f"rule 1: value {value} is not in memory")
        self.next += number == self.next
        for old in node.over:
            if old != NONE:
                self.memory.remove(old)
        self.memory.update(node.outputs)
        self.computing += node.cost

    def leave(self, value: int) -> None:
        if value not in self.memory:
            raise PlanError("rule 4: it is not in memory")
        self.memory.remove(value)

    def page_out(self, value: int) -> None:
        if self.paging is None:
            raise PlanError("rule 4: there is no storage to page to")
        if value not in self.memory:
            raise PlanError("rule 4: it is not in memory")
        size = self.graph.values[value].bytes
        if value not in self.stored:
            self.stored.add(value)
            self.stored_bytes += size
            self.stored_peak = max(self.stored_peak, self.stored_bytes)
        if self.paging.capacity is not None and self.stored_bytes > self.paging.capacity:
            raise PlanError(f"rule 4: storage would hold {self.stored_bytes} bytes, and has {self.paging.capacity}")
        self.out += size
        self.transfers += self.paging.out_time(size)

    def page_in(self, value: int) -> None:
        if self.paging is None or value not in self.stored:
            raise PlanError("rule 4: it was never paged out")
        if value in self.memory:
            raise PlanError("rule 4: it is in memory")
        self.memory.add(value)
        size = self.graph.values[value].bytes
        self.back += size
        self.transfers += self.paging.in_time(size)


# --- without a graph -------------------------------------------------------------------------------------------------


def check_followable(plan: Plan) -> None:
    """Raises PlanError, with the node or step, unless the plan can be followed, as far as that can
    be checked without its graph.

    The plan lists its nodes. Their values are numbered one after the other. A value that takes over
    bytes takes them from an earlier value of the same size. If the plan pages, it has the speeds.
    Its steps are legal.
    """
    if not plan.program:
        raise PlanError("the plan does not say for which ops it is: it cannot be followed")
    _check_program(plan)
    paging = paging_of(plan)
    try:
        _Run(bare_graph(plan.program), paging).all(plan.steps)
    except PlanError as error:
        raise PlanError(f"the plan is damaged: {error}") from None


def paging_of(plan: Plan) -> Paging | None:
    """The storage that it pages to, if it does. Raises PlanError if its description is wrong."""
    said = plan.about.get("paging")
    if said is None:
        return None
    names = {field.name for field in dataclasses.fields(Paging)}
    good = (
        isinstance(said, dict)
        and said.keys() <= names
        and all(is_rate(said.get(name)) for name in ("in_bandwidth", "out_bandwidth"))
        and all(is_rate(said.get(name)) or said.get(name) == 0 for name in ("in_latency", "out_latency"))
        and (said.get("watts", 0) == 0 or is_rate(said["watts"]))
        and (said.get("capacity") is None or is_whole(said["capacity"]))
    )
    if not good:
        raise PlanError(f"the plan is damaged: {repr(said)[:200]} is not what can be paged to")
    return Paging(**said)


def _check_program(plan: Plan) -> None:
    sizes: list[int] = []
    total = 0
    for at, line in enumerate(plan.program):
        before = len(sizes)
        taken: set[int] = set()
        for value, size, over in line.outputs:
            if value != len(sizes):
                raise PlanError(
                    f"the plan is damaged: its values are not numbered one after the other: node {at} makes {value}, "
                    f"and the next is {len(sizes)}"
                )
            if over != NONE and (over in taken or not (0 <= over < before and sizes[over] == size)):
                raise PlanError(
                    f"the plan is damaged: in node {at}, value {value} cannot take over the bytes of {over}"
                )
            taken.add(over)
            sizes.append(size)
            total += size
        total += line.scratch
    if total > MOST:
        raise PlanError("the plan is damaged: its sizes are more than 2**60 bytes: too large to be added up")


def check_figures(plan: Plan) -> None:
    """Raises PlanError unless the figures of a plan that can be followed agree.

    The peak is at least the bytes of the plan's own values and at most its budget. The duration is
    at least that of the step, and at least the bound. Only files are checked for this: a wrong
    figure misleads a reader, but does no other harm.
    """
    least = timeline_of(plan).peak
    if not least <= plan.peak <= plan.budget:
        raise PlanError(
            f"the plan is damaged: it says that it needs {format_bytes(plan.peak)} of {format_bytes(plan.budget)}, and its "
            f"values alone take {format_bytes(least)}"
        )
    if not max(plan.base_duration, plan.bound) <= plan.duration:
        raise PlanError(
            f"the plan is damaged: it says that it takes {plan.duration} ns, the step by itself {plan.base_duration} ns, and no "
            f"plan less than {plan.bound} ns"
        )


def check_addresses(plan: Plan) -> None:
    """Raises PlanError unless the addresses of a plan that can be followed, if it has some, are
    right: for what its steps have in memory, inside the budget, and apart from each other while
    both are in memory."""
    if plan.addresses is None:
        return
    stays = {(stay.begin, stay.first): stay for stay in timeline_of(plan).intervals()}
    for interval in plan.addresses.intervals:
        stay = stays.pop((interval.begin, interval.first), None)
        if stay is None or replace(stay, offset=interval.offset) != interval:
            raise PlanError(
                f"the plan is damaged: it has an address for {_name(interval.first)} from step {interval.begin} on, and its steps "
                "have no such thing in memory, or it has two of them"
            )
        if interval.offset < 0 or interval.top > plan.budget:
            raise PlanError(
                f"the plan is damaged: from step {interval.begin} on, {_name(interval.first)} takes {interval.bytes} bytes at "
                f"{interval.offset}, and the budget is {plan.budget}"
            )
    found = overlap(plan.addresses.intervals)
    if found is not None:
        one, other = found
        raise PlanError(
            f"the plan is damaged: at step {other.begin}, {_name(one.first)} at {one.offset} and {_name(other.first)} at "
            f"{other.offset} overlap"
        )


def _name(value: int) -> str:
    return "scratch" if value == NONE else f"value {value}"
