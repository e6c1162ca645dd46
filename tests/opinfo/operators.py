"""The programs of an operator's case, out of `op_db`: one for each of PyTorch's samples.

The forms of an operator:

    function    forward, and backward to all arguments that can have a gradient
    strided     the same with arguments that are not contiguous
    conjugated  the same with arguments that are conjugated lazily
    large       the same with large arguments, so that kernels split their work among threads
    double      backward through the backward pass
    inplace     the variant that overwrites its first argument, forward and backward
    out         into tensors of the right shape, into empty ones, and into ones with gaps
"""

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map_only

from opinfo.cases import Case, chosen_dtypes
from opinfo.copies import Copies
from same import Program

OPERATORS: dict[str, OpInfo] = {op.full_name: op for op in op_db}
LARGE = 1 << 22
"""Elements of a large sample's arguments together, at most."""


def operator_cases() -> Iterator[Case]:
    for name, op in OPERATORS.items():
        for dtype in chosen_dtypes(op.supported_dtypes("cpu")):
            for form in _forms(op, dtype):
                yield Case("op", name, str(dtype).removeprefix("torch."), form)


def _forms(op: OpInfo, dtype: torch.dtype) -> Iterator[str]:
    yield "function"
    if op.get_inplace() or op.get_inplace_operator():
        yield "inplace"
    if op.supports_out:
        yield "out"
    if dtype is torch.float32:
        yield "strided"
    if dtype in (torch.float32, torch.int64):
        yield "large"
    if dtype is torch.float64 and op.supports_gradgrad and op.supports_autograd:
        yield "double"
    if dtype is torch.complex64 and op.test_conjugated_samples:
        yield "conjugated"


def operator_programs(case: Case) -> Iterator[Program]:
    op = OPERATORS[case.name]
    for sample in samples(op, case.form, getattr(torch, case.dtype)):
        if case.form == "out":
            yield from (partial(_into, op, sample, targets) for targets in (_right, _empty, _gapped))
        elif case.form == "double":
            yield partial(_twice, op, sample)
        elif case.form == "inplace":
            yield partial(_once, op.get_inplace() or op.get_inplace_operator(), sample)
        else:
            yield partial(_once, op, sample)


def samples(op: OpInfo, form: str, dtype: torch.dtype) -> list[SampleInput]:
    """PyTorch's samples, the same ones each time."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex) and form != "out"
    with grown() if form == "large" else contextlib.nullcontext():
        made = op.conjugate_sample_inputs if form == "conjugated" else op.sample_inputs
        found = made("cpu", dtype, requires_grad=differentiable)
        if form == "large":
            return _large(found)
        if form == "inplace":
            return [sample for sample in found if not sample.broadcasts_input]
        if form == "strided":
            return [sample.noncontiguous() for sample in found if _all_strided(sample)]
        return list(found)


def _all_strided(sample: SampleInput) -> bool:
    """Sparse tensors have no order that could be changed."""
    tensors = [
        leaf for leaf in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    return all(tensor.layout is torch.strided for tensor in tensors)


@contextlib.contextmanager
def grown() -> Iterator[None]:
    """PyTorch's samples are shaped by a few constants: larger ones, for a while."""
    sizes = {"S": 48, "M": 96, "L": 128}
    changed = []
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal"):
            for constant, size in sizes.items():
                before = getattr(module, constant, None)
                if isinstance(before, int):
                    changed.append((module, constant, before))
                    setattr(module, constant, size)
    try:
        yield
    finally:
        for module, constant, before in changed:
            setattr(module, constant, before)


def _large(found: Iterator[SampleInput]) -> list[SampleInput]:
    """Of the first twelve, four that are large indeed, and not too large."""
    kept: list[SampleInput] = []
    # Some of PyTorch's generators insist on their own sizes.
    with contextlib.suppress(Exception):
        for sample in islice(found, 12):
            elements = [t.numel() for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if _is_tensor(t)]
            if elements and max(elements) >= 1 << 15 and sum(elements) <= LARGE:
                kept.append(sample)
            if len(kept) == 4:
                break
    return kept


# --- programs -------------------------------------------------------------------------------------------------------


def _once(function: Callable[..., Any], sample: SampleInput) -> Any:
    copies = Copies()
    first, args, kwargs = copies.of((sample.input, sample.args, sample.kwargs))
    result = function(first, *args, **kwargs)
    backward(sample.output_process_fn_grad(result))
    return {"result": detached(result), "arguments": detached(copies.tensors), "gradients": copies.gradients()}


def _twice(op: OpInfo, sample: SampleInput) -> Any:
    copies = Copies()
    first, args, kwargs = copies.of((sample.input, sample.args, sample.kwargs))
    outputs = _differentiable(sample.output_process_fn_grad(op(first, *args, **kwargs)))
    leaves = [leaf for leaf in copies.leaves if leaf.requires_grad]
    if not outputs or not leaves:
        return None
    cotangents = [cotangent(output).requires_grad_() for output in outputs]
    gradients = torch.autograd.grad(outputs, leaves, cotangents, create_graph=True, allow_unused=True)
    backward(gradients)
    return {
        "gradients": detached(gradients),
        "second gradients": copies.gradients(),
        "cotangents": [cotangent.grad for cotangent in cotangents],
    }


def _into(op: OpInfo, sample: SampleInput, targets: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    copies = Copies()
    first, args, kwargs = copies.of((sample.input, sample.args, sample.kwargs))
    with torch.no_grad():
        expected = op(first, *args, **kwargs)
        out = tree_map_only(torch.Tensor, targets, expected)
        result = op(first, *args, **kwargs, out=out)
    return {"out": detached(out), "result": detached(result), "arguments": detached(copies.tensors)}


def _right(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, 3)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype)


def _gapped(like: torch.Tensor) -> torch.Tensor:
    return torch.full((*like.shape, 2), 3, dtype=like.dtype)[..., 0]


# --- gradients ------------------------------------------------------------------------------------------------------


def backward(results: Any) -> None:
    """From all results that have a gradient, with the same gradients each time."""
    outputs = _differentiable(results)
    if outputs:
        torch.autograd.backward(outputs, [cotangent(output) for output in outputs])


def cotangent(output: torch.Tensor) -> torch.Tensor:
    """A gradient that is the same each time, and not the same everywhere."""
    if output.layout is not torch.strided or output.is_nested:
        return torch.ones_like(output)
    values = torch.arange(output.numel(), dtype=torch.float32).remainder_(7).sub_(3.25).div_(4)
    return values.reshape(output.shape).to(output.dtype)


def detached(tree: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.Tensor.detach, tree)


def _differentiable(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if _is_tensor(leaf) and leaf.requires_grad]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
