"""The timeline against a brute-force definition of what is in memory, on random schedules; and
what is derived from it."""

import random

import pytest
from graphs import chain, in_place, layered, small

from coop.plan.model.graph import NONE, from_trace
from coop.plan.model.plan import PlanError, Step
from coop.plan.model.schedule import peak_alone, peak_of, profile
from coop.plan.model.timeline import Memory, Timeline
from random_traces import build
from step_traces import convolutions, transformer


def schedule(graph, chance):
    """Random steps: inputs may be missing, but values that leave are in memory."""
    steps, memory, stored, reached = [], set(), set(), 0

    def compute(number):
        node = graph.nodes[number]
        if not memory.issuperset(node.overwritten()):
            return False
        steps.append(Step("compute", number))
        memory.difference_update(node.overwritten())
        memory.update(node.outputs)
        return True

    while reached < len(graph.nodes):
        what = chance.random()
        if what < 0.2 and memory:
            steps.append(Step("free", chance.choice(sorted(memory))))
            memory.remove(steps[-1].number)
        elif what < 0.25 and memory:
            steps.append(Step("out", chance.choice(sorted(memory))))
            stored.add(steps[-1].number)
        elif what < 0.35 and stored - memory:
            steps.append(Step("in", chance.choice(sorted(stored - memory))))
            memory.add(steps[-1].number)
        elif what < 0.6 and reached:
            compute(chance.randrange(reached))
        elif compute(reached):
            reached += 1
        else:  # what it overwrites has left
            for value in graph.nodes[reached].overwritten():
                if value not in memory:
                    compute(graph.values[value].node)
    return steps


def there(graph, steps, value, at):
    """By definition: of the steps up to this one that concern the value, the last one brings it
    into memory."""
    for kind, number in reversed(steps[: at + 1]):
        node = graph.nodes[number] if kind == "compute" else None
        if (node and value in node.outputs) or (kind == "in" and number == value):
            return True
        if (node and value in node.overwritten()) or (kind == "free" and number == value):
            return False
    return False


def stage_at(steps, at):
    """How many nodes have run before a step."""
    return len({number for kind, number in steps[:at] if kind == "compute"})


def bytes_at(graph, steps, at):
    values = sum(value.bytes for number, value in enumerate(graph.values) if there(graph, steps, number, at))
    kind, number = steps[at]
    scratch = graph.nodes[number].scratch if kind == "compute" else 0
    return graph.base[stage_at(steps, at)] + values + scratch


def graph_for(seed):
    chance = random.Random(seed)
    made = [lambda: small(seed), lambda: from_trace(build(chance.randbytes(200))), lambda: in_place(4),
            lambda: layered(14, 24, seed), lambda: chain(4)]  # fmt: skip
    return made[seed % len(made)](), chance


@pytest.mark.parametrize("seed", range(60))
def test_it_says_what_the_definition_says(seed):
    graph, chance = graph_for(seed)
    steps = schedule(graph, chance)
    timeline = Timeline(graph, steps)
    rising = [at for at, step in enumerate(steps) if step.kind in ("compute", "in")]
    expected = {at: bytes_at(graph, steps, at) for at in rising}
    assert [(m.at, m.kind, m.number) for m in timeline.moments] == [(at, *steps[at]) for at in rising]
    assert {moment.at: moment.bytes for moment in timeline.moments} == expected
    assert {moment.at: moment.stage for moment in timeline.moments} == {at: stage_at(steps, at) for at in rising}
    left = [n for n in range(len(graph.values)) if there(graph, steps, n, len(steps))]
    assert timeline.end == graph.base[-1] + sum(graph.values[n].bytes for n in left)
    assert timeline.peak == max([timeline.end, *expected.values()])
    assert timeline.duration == sum(graph.nodes[step.number].cost for step in steps if step.kind == "compute")

    budget = chance.choice(sorted(expected.values())) if expected else 0
    assert {moment.at for moment in timeline.over(budget)} == {at for at in rising if expected[at] > budget}
    worst = {}
    for at in rising:
        if expected[at] > budget:
            worst.setdefault(stage_at(steps, at), []).append(expected[at] - budget)
    assert timeline.excess(budget) == {stage: max(found) for stage, found in worst.items()}
    assert timeline.runs_over(budget) == {
        (steps[at].number, stage_at(steps, at))
        for at in rising
        if expected[at] > budget and steps[at].kind == "compute" and steps[at].number < stage_at(steps, at)
    }


@pytest.mark.parametrize("seed", range(60))
def test_who_is_in_memory_is_the_same_from_all_sides(seed):
    graph, chance = graph_for(seed)
    steps = schedule(graph, chance)
    timeline = Timeline(graph, steps)
    for moment, memory in timeline.present():
        assert memory == {n for n in range(len(graph.values)) if there(graph, steps, n, moment.at)}
    intervals = timeline.intervals()
    for at, (kind, number) in enumerate(steps):
        alive = [i for i in intervals if i.begin <= at < i.end]
        scratch = graph.nodes[number].scratch if kind == "compute" else 0
        assert sum(i.bytes for i in alive if i.value == NONE) == scratch
        assert sum(i.bytes for i in alive if i.value != NONE) == sum(
            value.bytes for n, value in enumerate(graph.values) if there(graph, steps, n, at)
        )
    stays = list(timeline.residencies())
    for value in range(len(graph.values)):
        for at in range(len(steps)):
            inside = sum(stay == value and begin <= at < end for stay, begin, end in stays)
            assert inside == there(graph, steps, value, at)
    assert all(steps[begin].kind in ("compute", "in") for _, begin, _ in stays)
    starts = timeline.at_the_start()
    assert len(starts) == len(graph.nodes) + 1
    for stage, memory in enumerate(starts):
        begin = next(at for at in range(len(steps) + 1) if stage_at(steps, at) == stage)
        while begin < len(steps) and steps[begin].kind in ("free", "out"):
            begin += 1
        assert memory == {n for n in range(len(graph.values)) if begin and there(graph, steps, n, begin - 1)}


@pytest.mark.parametrize("seed", range(30))
def test_what_is_made_while_it_is_there_begins_a_new_stay(seed):
    graph, chance = graph_for(seed)
    steps = schedule(graph, chance)
    made = sum(len(graph.nodes[step.number].outputs) for step in steps if step.kind == "compute")
    brought = sum(step.kind == "in" for step in steps)
    assert len(list(Timeline(graph, steps).residencies())) == made + brought


@pytest.mark.parametrize("seed", range(30))
def test_memory_says_before_a_node_runs_how_much_it_takes(seed):
    graph, chance = graph_for(seed)
    steps = schedule(graph, chance)
    memory = Memory(graph)
    change = {"compute": memory.compute, "free": memory.free, "in": memory.bring, "out": lambda value: None}
    for at, (kind, number) in enumerate(steps):
        if kind == "compute":
            needed = graph.base[stage_at(steps, at)] + memory.bytes + memory.rise(number)
            assert needed == bytes_at(graph, steps, at)
        change[kind](number)
        assert memory.values == {n for n in range(len(graph.values)) if there(graph, steps, n, at)}
        assert memory.bytes == sum(graph.values[n].bytes for n in memory.values)


@pytest.mark.parametrize("seed", range(60))
def test_nodes_alone_need_what_they_make_until_its_last_reader_among_them(seed):
    graph, chance = graph_for(seed)
    begin = chance.randrange(len(graph.nodes))
    part = range(begin, chance.randint(begin, len(graph.nodes)))
    nodes = [graph.nodes[number] for number in part]
    made = {value: number for number in part for value in graph.nodes[number].outputs}
    gone = {value: number for number in part for value in graph.nodes[number].overwritten()}
    wanted = {value for value in made if value not in gone and chance.random() < 0.5}

    def counts(value, at):
        """Whether it is in memory while a node runs, and made or overwritten by one of them."""
        if value not in made and value not in gone:
            return False
        readers = [number for number, node in zip(part, nodes, strict=True) if value in node.inputs]
        last = max([made.get(value, begin), *readers])
        until = gone[value] - 1 if value in gone else part[-1] if value in wanted else last
        return made.get(value, begin) <= at <= until

    levels = [
        graph.nodes[at].scratch + sum(v.bytes for number, v in enumerate(graph.values) if counts(number, at))
        for at in part
    ]
    before = sum(graph.values[value].bytes for value in gone if value not in made)
    assert peak_alone(graph, part, wanted) == max([before, *levels])


@pytest.mark.parametrize("trace", [transformer(), convolutions()], ids=["transformer", "convolutions"])
def test_of_a_training_step_it_says_what_the_definition_says(trace):
    graph = from_trace(trace)
    timeline = profile(graph, range(len(graph.nodes)))
    chosen = random.Random(0).sample(timeline.moments, 12)
    assert [moment.bytes for moment in chosen] == [bytes_at(graph, timeline.steps, moment.at) for moment in chosen]
    assert peak_of(graph) == max([timeline.end, *timeline.memory])


def test_what_is_not_there_cannot_leave():
    graph = chain(2)
    with pytest.raises(PlanError, match=r"step 1 \(free 3\): value 3 is not in memory"):
        Timeline(graph, [Step("compute", 0), Step("free", 3)])
