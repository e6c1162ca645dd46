"""Runs a program plainly and inside budgets, and demands the same bits."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import coop

Program = Callable[[], Any]
RATIOS = (0.7, 0.5, 0.4)


def seeded(program: Program) -> Any:
    """The program's result and the random state it leaves behind, from a fixed random state."""
    torch.default_generator.manual_seed(
        1234
    )  # torch.manual_seed asks all devices, which takes longer than most programs
    np.random.seed(1234)
    result = program()
    return {"result": result, "random state": torch.get_rng_state()}


def evict_all(budget: int) -> None:
    """Evicts everything evictable: allocates the largest block that finds room."""
    for size in range(budget, 0, -(64 << 10)):
        try:
            torch.empty(size, dtype=torch.uint8)
        except coop.OutOfBudget:
            continue
        return


def assert_same(expected: Any, actual: Any, where: str = "") -> None:
    """Equal to the last bit, NaNs included."""
    assert type(expected) is type(actual), f"{where}: {type(expected)} is not {type(actual)}"
    if isinstance(expected, torch.Tensor):
        assert expected.dtype == actual.dtype and expected.layout == actual.layout, where
        assert expected.is_nested or expected.shape == actual.shape, where
        a, b = _dense(expected), _dense(actual)
        same = torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        assert same, (
            f"{where}: bits differ, by up to {(a.double() - b.double()).abs().max() if a.is_floating_point() else '?'}"
        )
    elif isinstance(expected, dict):
        assert list(expected) == list(actual), where
        for key in expected:
            assert_same(expected[key], actual[key], f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(actual), where
        for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(expected, np.ndarray):
        assert expected.tobytes() == actual.tobytes(), where
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(actual), where
    else:
        assert expected == actual, f"{where}: {expected!r} is not {actual!r}"


def difference(expected: Any, actual: Any) -> str:
    """What assert_same would say. Empty: there is none."""
    try:
        assert_same(expected, actual)
    except AssertionError as error:
        return str(error) or "they differ"
    return ""


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in a row, whatever the tensor's strides and layout."""
    tensor = tensor.detach()
    if tensor.is_nested:
        return torch.cat([_dense(part) for part in tensor.unbind()])
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).view(-1)


def same_in_budget(
    program: Program,
    ratios: Iterable[float] = RATIOS,
    *,
    policy: str = "coop",
    evictions: bool = True,
    **options: Any,
) -> list[coop.Stats]:
    """Compares plain eager, an unlimited scope, and a budget for each ratio of the measured peak.

    A budget that is too small is raised: above the floor, then step by step until the program
    runs.
    """
    expected = seeded(program)
    with coop.measure() as memory:
        actual = seeded(program)
    assert_same(expected, actual, "without a limit: ")
    measured = memory.stats()
    found = []
    for ratio in ratios:
        size = max(int(measured.peak * ratio), int(measured.floor * 1.05))
        while True:
            assert size <= measured.peak * 1.1, f"does not run below its own peak of {measured.peak}"
            try:
                with coop.budget(size, policy, **options) as memory:
                    actual = seeded(program)
                    memory.check()
                break
            except coop.OutOfBudget:
                actual = None
                size = int(size * 1.08)
        assert_same(expected, actual, f"at {ratio} of {measured.peak} B with {policy}: ")
        stats = memory.stats()
        assert stats.peak <= stats.budget
        if evictions:
            assert stats.evictions > 0, f"nothing was evicted at {ratio} of {measured.peak} B: {stats}"
        found.append(stats)
    return found


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer, losses: list[torch.Tensor]) -> dict[str, Any]:
    """Everything that training changes."""
    return {
        "losses": [loss.detach().clone() for loss in losses],
        "parameters": {name: p.detach().clone() for name, p in model.named_parameters()},
        "gradients": {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        "buffers": {name: b.clone() for name, b in model.named_buffers()},
        "optimizer": _tensors_of(optimizer.state_dict()["state"]),
    }


def _tensors_of(state: Any) -> Any:
    if isinstance(state, dict):
        return {str(key): _tensors_of(value) for key, value in state.items()}
    return state.detach().clone() if isinstance(state, torch.Tensor) else state
