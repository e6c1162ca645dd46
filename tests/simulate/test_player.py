"""Playing a trace on the engine: the figures are those of the trace, the rules hold, steps follow
each other."""

import random

import pytest

from coop import POLICIES
from coop.simulate import Player
from coop.trace import Op, Output, Release, Source, Trace
from coop.trace.peak import peak_bytes


class Writer:
    """Writes a trace tensor by tensor."""

    def __init__(self):
        self.instructions, self.tensors = [], 0

    def _number(self):
        self.tensors += 1
        return self.tensors - 1

    def source(self, size, kind="parameter", carries=None):
        tensor = self._number()
        self.instructions.append(Source(tensor, size, kind, carries))
        return tensor

    def op(self, inputs, *sizes, cost=1000, phase="forward", write=None, **options):
        outputs = [] if write is None else [Output(self._number(), 0, write)]
        outputs += [Output(self._number(), size) for size in sizes]
        writes = () if write is None else (write,)
        self.instructions.append(Op("op", tuple(inputs), tuple(outputs), cost, phase, writes, **options))
        if write is not None:
            self.release(inputs[write])
        return outputs[0].tensor if len(outputs) == 1 else [output.tensor for output in outputs]

    def view(self, tensor):
        made = self._number()
        self.instructions.append(Op("view", (tensor,), (Output(made, 0, 0),), 1))
        return made

    def release(self, *tensors):
        self.instructions += [Release(tensor) for tensor in tensors]

    def trace(self):
        return Trace(self.instructions)


def training(seed, layers=12, width=64 * 1024):
    """A step of a random network: saved activations, views, in-place, multi-output ops, gradients,
    an optimizer."""
    rng, w = random.Random(seed), Writer()
    weights = [w.source(rng.choice([64, 4096, 40000])) for _ in range(layers)]
    x = w.source(width, "data")
    saved = []
    for weight in weights:
        cost = rng.choice([10, 500, 20000])
        kind = rng.choice(["plain", "in place", "pair", "view", "scratch", "once"])
        y = w.op(
            [x, weight],
            width,
            cost=cost,
            scratch=width // 2 if kind == "scratch" else 0,
            replayable=kind != "once",
        )
        if kind == "in place":
            y = w.op([y, weight], write=0, cost=cost // 10)
        elif kind == "pair":
            y, small = w.op([y], width, 128, cost=cost // 10)
            w.release(small)
        elif kind == "view":
            v = w.view(y)
            w.release(y)
            y = v
        saved.append(x)
        x = y
    gradient = w.op([x], width, phase="backward")
    w.release(x)
    gradients = []
    for weight, x in zip(reversed(weights), reversed(saved), strict=True):
        both = w.op([gradient, x, weight], width, 4096, cost=3000, phase="backward")
        w.release(gradient, x)
        gradient = both[0]
        gradients.append((weight, both[1]))
    w.release(gradient)
    for weight, gradient in gradients:
        w.op([weight, gradient], write=0, phase="optimizer")
        w.release(gradient)
    return w.trace()


@pytest.mark.parametrize("seed", range(10))
def test_without_pressure_the_figures_are_those_of_the_trace(seed):
    trace = training(seed)
    player = Player(trace)
    assert player.peak == peak_bytes(trace, 64)
    assert player.op_seconds == pytest.approx(trace.cost * 1e-9)
    result = player.play(4 * player.peak, checks=2)
    assert (result.status, result.overhead, result.stats.evictions) == ("ok", 1.0, 0)
    assert result.stats.peak == player.peak


@pytest.mark.parametrize("policy", POLICIES)
def test_under_pressure_the_rules_hold_and_time_is_paid(policy):
    ran = 0
    for seed in range(30):
        player = Player(training(seed))
        for ratio in (0.9, 0.7, 0.5, 0.3):
            result = player.play(ratio, policy, steps=2, limit=10.0, checks=2)
            assert result.stats.peak <= result.budget
            if result.status == "ok":
                ran += 1
                assert (result.overhead > 1) == (result.stats.rematerialisations > 0)
            else:
                assert result.failed is not None
    assert ran > 60


def test_a_budget_at_the_floor_or_below_says_what_set_it():
    player = Player(training(1))
    floor, setter = player.floor()
    below = player.play(floor - 64)
    assert below.status == "out_of_memory" and below.failed is not None and below.needed > 0
    assert isinstance(player.trace.instructions[setter], Op)


def test_recomputing_without_end_is_thrashing():
    player = Player(training(3, layers=60))
    assert player.play(0.5, "lru", limit=1.2).status == "thrash"
    assert player.play(0.5, "lru", limit=2.0).status == "ok"


def test_parameters_stay_data_are_new_and_results_are_replaced_in_the_next_step():
    w = Writer()
    weight = w.source(1000)
    data = w.source(2000, "data")
    w.op([weight, data], 4000)  # a loss that the program keeps until the next one is there
    w.release(data)
    w.op([weight], write=0, phase="optimizer")
    player = Player(w.trace(), alignment=1)
    assert player.peak == 7000
    assert player.play(20000, steps=1).stats.in_use == 5000
    three = player.play(20000, steps=3).stats
    assert three.in_use == 5000  # nothing accumulates
    assert three.peak == 11000  # the old loss and the new one


def test_a_source_may_carry_what_the_last_step_made():
    w = Writer()
    w.source(1000)
    before = w.source(500, "gradient", carries=3)
    w.release(before)
    data = w.source(64, "data")
    w.op([0, data], 500, phase="backward")
    w.release(data)
    player = Player(w.trace(), alignment=1)
    assert player.play(20000, steps=3).stats.peak == 1564  # never two gradients
    assert player.play(20000, steps=3).stats.in_use == 1500


def test_the_example_of_the_dtr_log():
    """w (4 B) -> a -> x1 -> b -> x2, view v2 -> c -> x3, and back."""
    w = Writer()
    weight = w.source(4)
    x1 = w.op([weight], 10, cost=5)
    x2 = w.op([x1], 10, cost=7)
    v2 = w.view(x2)
    x3 = w.op([v2], 10, cost=3)
    g2 = w.op([x3, x2], 10, cost=2, phase="backward")
    w.release(x3, v2, x2)
    g1 = w.op([g2, x1], 10, cost=2, phase="backward")
    w.release(g2, x1)
    gw = w.op([g1, weight], 4, cost=2, phase="backward")
    w.release(g1)
    w.op([weight, gw], write=0, cost=1, phase="optimizer")
    w.release(gw)
    trace = w.trace()
    player = Player(trace, alignment=1)
    assert (trace.cost, player.peak) == (23, 44)
    for policy in ("coop", "dtr", "dtr-eq", "lru", "dte"):
        for budget in range(34, 44):
            result = player.play(budget, policy, tiny=0)
            assert (result.status, result.overhead) == ("ok", pytest.approx(28 / 23)), (policy, budget)
        assert player.play(33, policy, tiny=0).status == "out_of_memory"


def test_a_tensor_that_nobody_holds_cannot_be_used():
    w = Writer()
    weight = w.source(10)
    w.release(weight)
    w.op([weight], 10)
    with pytest.raises(ValueError, match="instruction 2 uses tensor 0, which nobody holds"):
        Player(w.trace())
