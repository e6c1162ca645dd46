"""The reference accepts each event of the engine, on random traces at random budgets."""

import dataclasses
import random
from collections import Counter
from typing import Any

import pytest

import reference
from coop._C import CostModel, Placement
from coop.policies import POLICIES
from coop.simulate import Player, Simulation
from coop.trace.trace import Op, Output, Release, Source, Trace
from random_steps import random_trace, shrink

pytestmark = pytest.mark.slow

NOT_COMPARED = {"exact_costs", "union_find_costs", "looks", "search_seconds", "move_seconds", "events"}
"""Figures that are not compared: how often costs were computed instead of cached, how many blocks
were visited, and times on the wall clock."""

SWITCHES: dict[str, list[Any]] = {
    "window": [False],
    "partition": [True, False],
    "per_byte": [True, False],
    "keep_dead": [True, False],
    "in_place": [True, False],
    "move": [True, False],
    "rescue": [True, False],
    "needed_only": [True, False],
    "record_backward": [True, False],
    "tiny": [0, 64, 2000],
    "max_depth": [1, 2, 8],
    "max_versions": [0, 1, 2],
    "exact_limit": [0, 1, 2, 4],
    "copy_bandwidth": [1e6, 1e12],
    "placement": list(Placement.__members__.values()),
    "cost": list(CostModel.__members__.values()),
    "swap": [True],
}


def comparable(result: Simulation) -> dict[str, Any]:
    """Figures and the end."""
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    stats = dataclasses.asdict(fields.pop("stats"))
    return {name: value for name, value in (fields | stats).items() if name not in NOT_COMPARED}


def play_both(trace: Trace, budget: int, policy: str, alignment: int = 64, **options: Any) -> tuple[Simulation, str]:
    """The engine's result, and the difference of the reference: empty if there is none."""
    player = Player(trace, alignment)
    result, difference = play_once(player, budget, policy, **options)
    if not difference:
        plenty = reference.enough(trace, alignment)
        unlimited, difference = play_once(player, plenty, "coop", keep_dead=False)
        assert (unlimited.status, unlimited.stats.peak) == ("ok", player.peak)
    return result, difference


def play_once(player: Player, budget: int, policy: str, **options: Any) -> tuple[Simulation, str]:
    result = player.play(budget, policy, events=True, checks=2, **options)
    judged = {"alignment": player.alignment, **options}
    try:
        other = comparable(reference.play(player.trace, budget, policy, result.events, player.peak, **judged))
    except reference.RefereeError as error:
        return result, str(error)
    for name, value in comparable(result).items():
        if value != other[name]:
            return result, f"{name}: {value} in the engine, {other[name]} in the reference"
    return result, ""


def check_agreement(trace: Trace, budget: int, policy: str, **options: Any) -> Simulation:
    result, difference = play_both(trace, budget, policy, **options)
    if difference:
        small = shrink(trace, lambda t: bool(t.instructions) and bool(play_both(t, budget, policy, **options)[1]))
        lines = "\n".join(f"    {instruction}," for instruction in small.instructions)
        where = play_both(small, budget, policy, **options)[1]
        pytest.fail(f"budget {budget}, {policy}, {options}\n{where}\non\n{lines}", pytrace=False)
    return result


def some_budget(rng: random.Random, trace: Trace, alignment: int, swap: bool = False) -> int:
    """Mostly between the floor and the peak, sometimes below."""
    player = Player(trace, alignment)
    share = rng.choice([rng.uniform(0, 1), rng.uniform(0, 0.5), rng.uniform(-0.4, 0)])
    low, high = 0.95 * player.floor(swap=swap).bytes, 1.05 * player.peak
    return max(int(low + (high - low) * share), alignment)


def some_tier(rng: random.Random) -> dict[str, Any]:
    """Links that are slower than the ops beside them, up to links that are faster than all ops."""
    speed = 10 ** rng.uniform(6, 12)
    return {
        "swap": True,
        "swap_out": speed,
        "swap_in": speed * rng.choice([1, 1, 0.3, 3]),
        "swap_least": rng.choice([1, 1, 1000]),
        "swap_load": rng.choice([0.0, 0.05, 0.5]),
        "foresee": rng.random() < 0.8,
        "steps": rng.choice([1, 2, 3, 4]),
    }


COUNTED = ("evictions", "replays", "moves", "commits", "swaps_out", "swaps_in", "prefetch_hits", "prefetch_misses")


def agree_on_random_traces(seed: int, count: int, policy: str, tier: bool = False, **options: Any) -> Counter[str]:
    seen: Counter[str] = Counter()
    for number in range(count):
        rng = random.Random(seed * 1000 + number)
        trace = random_trace(rng)
        alignment = rng.choice([64, 64, 16, 256])
        some = {"steps": rng.choice([1, 1, 2, 3]), "limit": rng.choice([2.0, 1e9])} | options
        if tier:
            some |= some_tier(rng)
        budget = some_budget(rng, trace, alignment, some.get("swap", False))
        result = check_agreement(trace, budget, policy, alignment=alignment, **some)
        seen[result.status] += 1
        seen.update({name: getattr(result.stats, name) for name in COUNTED})
    return seen


@pytest.mark.parametrize("policy", POLICIES)
def test_engine_and_reference_agree_for_every_policy(policy: str) -> None:
    """As published, and with compaction: without it, most small budgets end early."""
    seen = agree_on_random_traces(1, 40, policy)
    seen += agree_on_random_traces(2, 40, policy, rescue=True)
    assert all(seen[status] for status in ("ok", "out_of_memory", "thrash")), seen
    assert all(seen[count] > 50 for count in ("evictions", "replays", "moves", "commits")), seen


@pytest.mark.parametrize("policy", POLICIES)
def test_engine_and_reference_agree_where_storages_leave_with_their_bytes(policy: str) -> None:
    seen = agree_on_random_traces(3, 40, policy, tier=True)
    seen += agree_on_random_traces(4, 40, policy, tier=True, rescue=True)
    assert all(seen[status] for status in ("ok", "out_of_memory")), seen
    assert all(seen[count] > 50 for count in COUNTED if count != "moves"), seen


def carried_states(rng: random.Random) -> Trace:
    """A few states, each made from the one before and from other tensors. Temporaries are dropped
    first, the old state last. Many other tensors are made and dropped in between."""
    sizes = [rng.choice([600, 2000, 80_000]) for _ in range(rng.randint(1, 2))]
    kind = rng.choice(["parameter", ""])
    instructions: list[Any] = [Source(0, 3000, kind)]
    tensors = 1
    states = []

    def op(inputs: tuple[int, ...], size: int) -> int:
        nonlocal tensors
        instructions.append(Op("op", inputs, (Output(tensors, size),), rng.randint(100, 5000)))
        tensors += 1
        return tensors - 1

    for size in sizes:
        states.append(op((), size))
    for _ in range(rng.randint(120, 160)):
        at = rng.randrange(len(states))
        made = op((states[at], *rng.choice([(), (0,), (rng.choice(states),)])), sizes[at])
        new = op((made, *rng.choice([(), (0,)])), sizes[at])
        instructions += [Release(made), Release(states[at])]
        states[at] = new
        for _ in range(40):
            instructions.append(Release(op((), 600)))
        if rng.random() < 0.2:
            instructions.append(Release(op((), rng.choice([1000, 200_000]))))
    return Trace(instructions)


def test_engine_and_reference_agree_where_states_are_carried_along() -> None:
    commits = evictions = 0
    for number in (1, 2, 4):
        rng = random.Random(number)
        trace = carried_states(rng)
        policy = rng.choice(list(POLICIES))
        budget = int(Player(trace).peak * rng.choice([1.0, 0.999, 0.7]))
        result = check_agreement(trace, budget, policy, limit=1e9, rescue=True)
        commits += result.stats.commits
        evictions += result.stats.evictions
    assert commits > 20 and evictions > 20


@pytest.mark.parametrize("switch", SWITCHES)
def test_engine_and_reference_agree_for_every_switch(switch: str) -> None:
    for number, value in enumerate(SWITCHES[switch]):
        for policy in ("coop", "dtr"):
            agree_on_random_traces(100 + number, 6, policy, **{switch: value})


@pytest.mark.parametrize("seed", range(4))
def test_engine_and_reference_agree_for_combinations_of_switches(seed: int) -> None:
    rng = random.Random(seed)
    for number in range(20):
        names = rng.sample(sorted(SWITCHES), rng.randint(2, 6))
        options = {name: rng.choice(SWITCHES[name]) for name in names}
        policy, tier = rng.choice(list(POLICIES)), rng.random() < 0.5
        agree_on_random_traces(1000 * (seed + 1) + number, 1, policy, tier, **options)


def test_a_request_above_the_budget_evicts_nothing() -> None:
    trace = Trace([Source(0, 1024), Op("a", (0,), (Output(1, 1024),), 1000), Op("b", (1,), (Output(2, 9999),), 1000)])
    for policy in POLICIES:
        result = check_agreement(trace, 4096, policy)
        assert (result.status, result.stats.evictions) == ("out_of_memory", 0)


def test_many_small_outputs_count_with_their_padding() -> None:
    trace = Trace([Op("many", (), tuple(Output(number, 1) for number in range(10)), 1000)])
    assert Player(trace, alignment=256).peak == 2560
    check_agreement(trace, 2560, "coop", alignment=256)


def test_of_two_windows_that_cost_nothing_the_lower_one_is_taken() -> None:
    trace = Trace(
        [
            Op("dear", (), (Output(0, 1024),), 1000),
            Op("dear", (), (Output(1, 1024),), 10_000_000),
            Op("free", (), (Output(2, 2048),), 0),
            Op("operand", (), (Output(3, 1024),), 5),
            Op("free", (), (Output(4, 2048),), 0),
            Op("last", (3,), (Output(5, 2048),), 7),
        ]
    )
    check_agreement(trace, 7168, "coop")


@pytest.mark.parametrize(("needed_only", "evicted"), [(True, 2), (False, 1)])
def test_what_nobody_needs_does_not_make_dear_what_it_was_made_from(needed_only: bool, evicted: int) -> None:
    trace = Trace(
        [
            Op("other", (), (Output(0, 1024),), 5000),
            Op("cheap", (), (Output(1, 1024),), 1000),
            Op("dear", (1,), (Output(2, 1024),), 1_000_000),
            Op("last", (2,), (Output(3, 1024),), 1000),
            Release(2),
            Op("large", (), (Output(4, 2048),), 1000),
        ]
    )
    result = check_agreement(trace, 4096, "dtr", needed_only=needed_only)
    assert [event.storage for event in result.events if event.kind == "evict"][:2] == [3, evicted]


@pytest.mark.parametrize(("kind", "recorded"), [("parameter", 2), ("", 1)])
def test_an_op_in_place_is_not_recorded_with_a_source_that_passes(kind: str, recorded: int) -> None:
    trace = Trace(
        [
            Source(0, 1024, kind),
            Op("make", (0,), (Output(1, 2048),), 1000),
            Op("in place", (1, 0), (Output(2, 0, 0),), 1000, writes=(0,)),
        ]
    )
    assert check_agreement(trace, 8192, "coop").stats.recorded_ops == recorded


@pytest.mark.parametrize(("size", "settled"), [(2048, True), (1024, False)])
def test_many_orphans_are_settled_if_what_was_made_is_not_larger_than_all(size: int, settled: bool) -> None:
    trace = Trace(
        [
            *(Source(number, size) for number in range(4)),
            Op("read", (0, 1, 2, 3), (Output(4, 6000),), 1000),
            *(Release(number) for number in range(4)),
            Op("next", (), (Output(5, 1024),), 1000),
        ]
    )
    result = check_agreement(trace, 65536, "coop")
    assert (result.stats.commits, result.stats.sources) == ((1, 6000) if settled else (0, 4 * size))


def test_an_orphan_that_is_kept_at_first_is_looked_at_again() -> None:
    trace = Trace(
        [
            Source(0, 1024),
            Op("read", (0,), (Output(1, 2048),), 1000),
            Op("read", (0,), (Output(2, 2048),), 1000),
            Release(0),
            Op("next", (), (Output(3, 1024),), 1000),
            Release(1),
            Op("next", (), (Output(4, 1024),), 1000),
        ]
    )
    result = check_agreement(trace, 65536, "coop")
    commits = [event for event in result.events if event.kind == "commit"]
    assert [event.storage for event in commits] == [3]
    assert commits[0].time > next(event.time for event in result.events if event.kind == "die" and event.storage == 2)


def test_no_room_for_the_second_of_two_copies_on_write() -> None:
    versions = (Output(2, 0, 0), Output(3, 0, 1))
    trace = Trace(
        [
            Op("a", (), (Output(0, 1024),), 1000),
            Op("b", (), (Output(1, 2048),), 1000),
            Op("both", (0, 1), versions, 1000, writes=(0, 1)),
        ]
    )
    assert check_agreement(trace, 4096, "dtr").status == "out_of_memory"


@pytest.mark.parametrize("case", ["swap", "state of the step before", "two names"])
def test_a_source_is_what_the_tensor_it_carries_was(case: str) -> None:
    cases = {
        "swap": [Source(0, 1024, "", 1), Source(1, 2048, "", 0)],
        "state of the step before": [
            Source(0, 1024),
            Op("new", (0,), (Output(1, 2048),), 1000),
            Source(2, 2048, "", 1),
            Op("difference", (1, 2), (Output(3, 100),), 1000),
            Release(2),
            Release(3),
        ],
        "two names": [
            Source(0, 1024),
            Source(1, 1024, "", 3),
            Op("read", (1,), (Output(2, 100),), 1000),
            Release(1),
            Op("view", (0,), (Output(3, 0, 0),)),
            Op("read", (0,), (Output(4, 100),), 1000),
        ],
    }
    check_agreement(Trace(cases[case]), 16384, "coop", steps=3)
