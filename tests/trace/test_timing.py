"""Costs of a live trace are those that ops have in an arena."""

import torch
from torch import nn

from coop.trace import Op, Output, record
from coop.trace.timing import STEPS, _matched


def ops(*names):
    return [Op(name, (), (Output(i, 64),), 0 if name == "view" else 1) for i, name in enumerate(names)]


def test_ops_are_found_again_by_name_and_order():
    ran = [("a", 1.0), ("extra", 9.0), ("b.Tensor", 2.0), ("c_", 3.0), ("d", 4.0)]
    assert _matched(ops("a", "b.Scalar", "view", "missing", "c", "d"), ran) == [(0, 1.0), (1, 2.0), (4, 3.0), (5, 4.0)]


def test_an_op_that_did_not_run_leaves_the_others_in_place():
    assert _matched(ops("gone", "a", "a"), [("a", 1.0), ("a", 2.0)]) == [(1, 1.0), (2, 2.0)]


def test_a_step_is_run_so_often_and_small_ops_cost_little():
    model, batch, runs = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8))), torch.randn(2, 4), []

    def step():
        runs.append(1)
        model(batch).sum().backward()

    trace = record(step)
    assert len(runs) == 1 + 2 + 1 + STEPS
    costs = [op.cost for op in trace.instructions if isinstance(op, Op) and op.name == "aten::addmm"]
    assert len(costs) == 8 and all(cost > 0 for cost in costs)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
