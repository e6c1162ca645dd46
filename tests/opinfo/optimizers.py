"""The programs of an optimizer's case, out of `optim_db`: a few steps on a small network, for each
set of options.

The forms are PyTorch's implementations: forloop, foreach, fused, and differentiable where there is
one.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db

from opinfo.cases import Case
from opinfo.operators import detached
from same import Program

OPTIMIZERS: dict[str, OptimizerInfo] = {optimizer.name: optimizer for optimizer in optim_db}
STEPS = 3


def optimizer_cases() -> Iterator[Case]:
    for name, optimizer in OPTIMIZERS.items():
        for dtype in ("float32", "float64"):
            yield Case("optimizer", name, dtype, "forloop")
            if "foreach" in optimizer.supported_impls:
                yield Case("optimizer", name, dtype, "foreach")
            if "cpu" in optimizer.supports_fused_on:
                yield Case("optimizer", name, dtype, "fused")


def optimizer_programs(case: Case) -> Iterator[Program]:
    optimizer = OPTIMIZERS[case.name]
    for options in optimizer.optim_inputs_func(device="cpu"):
        yield partial(_train, optimizer, options, case.form, getattr(torch, case.dtype))


def _train(optimizer: OptimizerInfo, options: OptimizerInput, form: str, dtype: torch.dtype) -> Any:
    flags = {} if optimizer.only_supports_sparse_grads else {"foreach": form == "foreach"}
    if form == "fused":
        flags = {"fused": True}
    sparse = optimizer.only_supports_sparse_grads
    table = torch.nn.Embedding(7, 6, sparse=sparse, dtype=dtype)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(dtype)
    trained = list(table.parameters()) if sparse else [*table.parameters(), *model.parameters()]
    if "foreach" not in optimizer.supported_impls:
        flags.pop("foreach", None)
    made = optimizer.optim_cls(_parameters(trained, optimizer), **{**options.kwargs, **flags})
    rows = torch.tensor([[0, 1, 2, 3], [3, 3, 5, 6]])

    def loss() -> torch.Tensor:
        made.zero_grad()
        model.zero_grad()
        value = model(table(rows)).square().mean()
        value.backward()
        return value

    losses = []
    for _ in range(STEPS):
        if optimizer.step_requires_closure:
            losses.append(made.step(loss))
        else:
            losses.append(loss())
            made.step()
    return {
        "losses": detached(losses),
        "parameters": detached(trained),
        "state": {str(at): detached(state) for at, state in enumerate(made.state.values())},
    }


def _parameters(trained: list[torch.nn.Parameter], optimizer: OptimizerInfo) -> list[torch.nn.Parameter]:
    """Muon takes matrices only."""
    return [p for p in trained if p.dim() == 2] if optimizer.name == "Muon" else trained
