"""poet: the least energy in a memory budget and a run-time limit, by recomputation and paging.

Patil et al., "POET: Training Neural Networks on Tiny Devices with Integrated Rematerialization and
Paging", ICML 2022.

Joules are minimised: the time of each run of a node times the device's watts, and the time of each
transfer times the storage's watts. Constraints are those of the staged model (exact/staged.py), and
three more: a value in memory was kept, recomputed, or brought in from storage. A value that is
brought in was written out before. Everything takes at most `slowdown` times as long as the step by
itself.

What differs: transfers count in the run-time limit, and take memory while they last. Storage has a
capacity. Parameters, gradients and everything else in a trace are counted. The graph is that of a
real training step, with residual branches, ops in place, scratch and several outputs.

Not done: a second solver, and a linear relaxation.

It begins with first plans (start.py). Then it solves a small model, in which every node runs once,
and then larger ones: nodes run again at the stages of their readers, at those of the readers'
readers, or anywhere in small graphs. `about` says among which plans the last one is optimal, if it
is. Energy is counted in 10 million units: plans that differ by less are the same.

A trace has the costs of one device. It has to be the device of the plan.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from coop.plan.exact.intervals import wanted
from coop.plan.model.graph import Graph
from coop.plan.model.plan import PlanError, Step
from coop.plan.model.schedule import reruns_of
from coop.plan.model.timeline import Rerun
from coop.plan.poet.model import PagedModel
from coop.plan.poet.price import Price
from coop.plan.poet.start import first
from coop.plan.search.search import Search
from coop.sizes import format_bytes, parse_bytes
from coop.trace.device import Device, known, load

_HURRIES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Prices of a second besides its energy, in watts of the device. They give first plans for a
run-time limit."""
_SMALL = 60  # nodes: up to this size the model gets all reruns
_ASIDE = (None, 0.2)  # of the time, for a model with fewer reruns
_WHERE = {
    None: "every node runs once",
    1: "nodes run again where a reader runs for the first time",
    2: "nodes run again where a reader, or one of its readers, runs for the first time",
    0: "nodes run again anywhere",
}


def poet(
    search: Search,
    *,
    device: str | Path | Device | None = None,
    slowdown: float | None = None,
    storage: int | str | None = None,
    rematerialise: bool = True,
    page: bool = True,
) -> None:
    """`device`: a name, a TOML file or a device; None: the trace's. `slowdown`: how many times as
    long the step may take; None: any time. `storage`: bytes. Without `rematerialise` nodes run
    once; without `page` nothing goes to storage."""
    graph = search.graph
    machine = _device(graph, device)
    assert machine.watts is not None and machine.paging is not None
    if slowdown is not None and slowdown < 1:
        raise ValueError(f"a step takes at least as long as without a budget: slowdown is 1 or more, not {slowdown:g}")
    paging = machine.paging if storage is None else replace(machine.paging, capacity=parse_bytes(storage))
    price = Price(graph, machine.watts, paging)
    limit = None if slowdown is None else int(slowdown * graph.cost)
    search.paging = paging if page else None
    search.objective = price.joules
    search.about |= {"device": machine.name, "joules_base": machine.watts * graph.cost / 1e9}
    best = _Best(search, price, limit)
    _first_plans(best, rematerialise, page)
    _improve(best, rematerialise, page)
    if best.steps is None:
        # After a PlanError other planners would be tried, and they ignore these options.
        kind = PlanError if slowdown is None and rematerialise and page else ValueError
        limits = [f"{format_bytes(search.budget)} of memory"]
        limits += [] if slowdown is None else [f"{slowdown:g} times the run time"]
        limits += [] if paging.capacity is None or not page else [f"{format_bytes(paging.capacity)} of storage"]
        raise kind(f"poet found no plan for {', '.join(limits)}. Tip: more of any of that, or a longer time limit")


class _Best:
    """The plan with the least energy so far, among those that are fast enough."""

    def __init__(self, search: Search, price: Price, limit: int | None) -> None:
        self.search, self.price, self.limit = search, price, limit
        self.steps: Sequence[Step] | None = None
        self.reruns: set[Rerun] = set()
        """Where first plans run nodes again."""

    def offer(self, steps: Sequence[Step]) -> bool:
        """Whether it is fast enough."""
        joules, time = self.price.of(steps)
        if self.limit is not None and time > self.limit:
            return False
        if self.search.offer_steps(steps):
            self.steps = steps
            moved = [self.price.graph.values[step.number].bytes for step in steps if step.kind in ("in", "out")]
            self.search.about |= {"joules": joules, "seconds": time / 1e9, "paged_bytes": sum(moved)}
        return True


def _first_plans(best: _Best, rematerialise: bool, page: bool) -> None:
    search, price = best.search, best.price
    search.stage = "first plans"
    for remat, paged in ((True, True), (True, False), (False, True)):
        allowed = remat <= rematerialise and paged <= page
        for hurry in _HURRIES if best.limit is not None else _HURRIES[:1]:
            if not search.seconds_left():
                return
            with contextlib.suppress(PlanError):
                worth = hurry * price.watts
                steps = first(search.graph, search.budget, price, rematerialise=remat, page=paged, hurry=worth)
                best.reruns |= _again(steps)  # also of slower ones: their reruns are worth a try
                if not allowed or best.offer(steps):
                    break


def _improve(best: _Best, rematerialise: bool, page: bool) -> None:
    search, graph = best.search, best.search.graph
    rounds: list[tuple[int | None, float]] = []
    if rematerialise:
        rounds = [(1, 0.5), (2 if len(graph.nodes) > _SMALL else 0, 1.0)]
    if page:
        rounds.insert(0, _ASIDE if rematerialise else (None, 1.0))
    for reach, share in rounds:
        if search.proven or not search.seconds_left():
            return
        where = _WHERE[reach]
        search.stage = f"energy, {where}"
        reruns = set() if reach is None else _reruns(graph, reach) | best.reruns | _again(best.steps or ())
        model = PagedModel(search, best.price, reruns, page=page, limit=best.limit)
        with contextlib.suppress(PlanError):  # there is none with these reruns
            if model.best(search, search.seconds_left(share), best.steps, best.offer) and (reach, share) != _ASIDE:
                search.about["optimal"] = f"among plans in which {where}"


def _again(steps: Iterable[Step]) -> set[Rerun]:
    return reruns_of([step.number for step in steps if step.kind == "compute"])


def _reruns(graph: Graph, reach: int) -> set[Rerun]:
    return {(n, at) for n, stages in enumerate(wanted(graph, reach)) for at in stages if graph.repeatable(n, at)}


def _device(graph: Graph, device: str | Path | Device | None) -> Device:
    costs = graph.about.get("device", "")
    if device is None and costs not in known():
        whose = f"are of {costs!r}, of which it is not known how much energy it takes" if costs else "are of no device"
        raise ValueError(f"the costs of this step {whose}. Tip: trace it for a device that says, such as {_examples()}")
    found = device if isinstance(device, Device) else load(costs if device is None else device)
    if costs not in ("", "measured", found.name):
        raise ValueError(
            f"the costs of this step are of {costs!r}, and the device is {found.name!r}. "
            f"Tip: make the trace for it, with --device {found.name}"
        )
    if found.watts is None or found.paging is None:
        missing = "watts" if found.watts is None else "[paging]"
        raise ValueError(
            f"the device {found.name!r} does not say {missing}, and energy is counted by it. Tip: {_examples()} do, "
            "and so may a TOML file of your own"
        )
    return found


def _examples() -> str:
    return ", ".join(name for name in known() if load(name).watts is not None)
