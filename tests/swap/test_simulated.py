"""Swapping in the simulator: the same engine, on a clock."""

import json
import random

import pytest

from command import coop as command
from coop.simulate import Player
from coop.trace import Trace, TraceError, write
from random_steps import random_trace
from step_traces import convolutions, transformer

TIER = {"swap": True, "swap_in": 12e9, "swap_out": 12e9}
TRACES = pytest.mark.parametrize("trace", [transformer(), convolutions()], ids=["transformer", "convolutions"])


@TRACES
@pytest.mark.parametrize("policy", ["coop", "dtr", "dte"])
def test_with_a_tier_sources_leave_and_the_floor_is_lower(trace, policy):
    player = Player(trace)
    alone, swapping = player.floor(policy).bytes, player.floor(policy, **TIER).bytes
    assert swapping < alone
    budget = (3 * alone + swapping) // 4
    assert player.play(budget, policy, checks=2).status != "ok"
    played = player.play(budget, policy, checks=2, steps=2, limit=1e9, **TIER)
    assert played.status == "ok" and played.stats.peak <= budget
    stats = played.stats
    assert stats.swaps_in > 0 and stats.swapped_out > 0
    assert stats.transfer_seconds == pytest.approx((stats.swapped_in + stats.swapped_out) / 12e9)
    assert stats.hidden_seconds == pytest.approx(stats.transfer_seconds - stats.waited_seconds)
    whole = stats.op_seconds + stats.recompute_seconds + stats.move_seconds + stats.waited_seconds
    assert played.overhead == pytest.approx(whole / stats.op_seconds)


@TRACES
def test_a_tier_that_is_far_too_slow_is_not_used(trace):
    player = Player(trace)
    slow = TIER | {"swap_in": 1.0, "swap_out": 1.0}
    alone, beside = player.play(0.8, steps=2), player.play(0.8, steps=2, **slow, foresee=False)
    assert beside.stats.swaps_out == 0 and beside.overhead == alone.overhead
    assert player.play(0.8, steps=2, **slow).stats.swaps_out == 0


@TRACES
@pytest.mark.parametrize("policy", ["coop", "delta"])
def test_most_transfers_are_hidden_once_the_step_is_known(trace, policy):
    """In a little more than what recomputing alone would need."""
    player = Player(trace)
    alone, swapping = player.floor().bytes, player.floor(**TIER).bytes
    budget = alone + (alone - swapping) // 4
    first, all = (player.play(budget, policy, checks=2, steps=steps, limit=9.0, **TIER).stats for steps in (2, 6))
    transfers, waited = all.transfer_seconds - first.transfer_seconds, all.waited_seconds - first.waited_seconds
    assert all.prefetch_hits - first.prefetch_hits > 3 * (all.prefetch_misses - first.prefetch_misses)
    assert transfers > 0 and waited / transfers < 0.5


def test_storages_swap_over_the_link_of_the_device_that_a_trace_is_of():
    trace = transformer()
    player = Player(trace)
    budget = (player.floor().bytes + player.floor(swap=True).bytes) // 2
    for into, out in ((12e9, 12e9), (3e9, 1e9)):
        linked = Trace(trace.instructions, about=trace.about | {"swap_bandwidth": [into, out]})
        stats = Player(linked).play(budget, limit=1e9, swap=True).stats
        assert stats.swaps_in > 0
        assert stats.transfer_seconds == pytest.approx(stats.swapped_in / into + stats.swapped_out / out)


@pytest.mark.parametrize("wrong", [12e9, [12e9], [12e9, 0], [12e9, "fast"]])
def test_a_link_is_two_speeds(wrong):
    with pytest.raises(TraceError, match="swap_bandwidth must be two numbers of bytes per second, in and out, not"):
        Trace([], about={"swap_bandwidth": wrong})


@pytest.mark.parametrize("seed", range(30))
def test_random_steps_hold_all_rules(seed):
    trace = random_trace(random.Random(seed))
    player = Player(trace)
    for share in (0.8, 0.5):
        played = player.play(int(share * player.peak), checks=2, steps=3, **TIER | {"swap_least": 1})
        assert played.status in ("ok", "out_of_memory", "thrash") and played.stats.peak <= played.budget


def test_the_command_tells_what_was_swapped(tmp_path, capsys):
    write(transformer(), tmp_path / "step.trace")
    player = Player(transformer())
    budget = (player.floor().bytes + player.floor(**TIER).bytes) // 2
    refused = command(capsys, "simulate", tmp_path / "step.trace", "--budget", budget)
    assert refused.code == 2 and "below the floor" in refused.err
    ended = command(
        capsys,
        "simulate",
        tmp_path / "step.trace",
        "--budget",
        budget,
        "--swap-bandwidth",
        "12GB,10GB",
        "--limit",
        "100",
        "--json",
    )
    found = json.loads(ended.out)
    assert found["status"] == "ok" and found["swapped_in"] > 0 and found["transfer_seconds"] > 0
    assert found["hidden_seconds"] >= 0 and found["prefetch_hits"] + found["prefetch_misses"] > 0
    for wrong in ("12GB", "1,2,3", "0,1GB", "fast,1GB"):
        assert (
            command(capsys, "simulate", tmp_path / "step.trace", "--budget", budget, "--swap-bandwidth", wrong).code
            == 2
        )
