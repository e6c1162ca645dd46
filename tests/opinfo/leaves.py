"""Looks at each leaf operator below autograd while PyTorch's samples run plainly, for what its
schema does not say.

    not deterministic   PyTorch's own alert says so, or two runs from the same bytes give different ones
    hidden write        an argument changes that the schema does not mark as written

Whatever is found is then called in a scope. Results that are not deterministic must not be evicted
there, since they would come back as others; what is computed from an argument before a hidden write
must survive it (rule 5).
"""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import coop
from opinfo.cases import Case
from opinfo.copies import Copies, is_exotic
from opinfo.crowded import crowded_cases, crowded_programs
from opinfo.modules import MODULE_FORMS, module_cases, module_programs
from opinfo.operators import detached, operator_cases, operator_programs
from same import Program, difference

ALERT = "does not have a deterministic implementation"
UNDEFINED = {
    "aten::_ctc_loss": 1,  # rows beyond the length of an input
    "aten::mkldnn_rnn_layer": 3,  # scratch space in what is saved for the backward pass
}
"""Of a leaf: the result that has bytes which nothing sets."""


def leaf_cases() -> Iterator[Case]:
    """The operators' cases of float32, and some of the others: what a leaf does hardly depends on
    the dtype."""
    for case in operator_cases():
        if case.dtype == "float32" or (case.form == "function" and case.dtype in ("int64", "complex64")):
            yield dataclasses.replace(case, kind="leaves")
    for case in crowded_cases():
        if case.dtype == "float32":
            yield dataclasses.replace(case, kind="leaves", form="crowded")
    for case in module_cases():
        if case.dtype == "float32":
            yield dataclasses.replace(case, kind="leaves")


def leaf_programs(case: Case) -> Iterator[Program]:
    if case.form in MODULE_FORMS:
        return module_programs(case)
    if case.form != "crowded":
        return operator_programs(case)
    # Whether two threads meet is a matter of luck.
    return chain.from_iterable(crowded_programs(case) for _ in range(5))


@dataclasses.dataclass
class Finding:
    """A leaf and the arguments, copied, with which it did what its schema does not say."""

    func: torch._ops.OpOverload
    kind: str
    """not deterministic, or hidden write."""
    what: str
    arguments: tuple[Any, dict[str, Any]]

    @property
    def name(self) -> str:
        return self.func.name()


class Leaves(TorchDispatchMode):
    """Runs each leaf three times, and keeps the first finding of each kind for each leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.findings: dict[tuple[str, str], Finding] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not _computes(func) or any(is_exotic(tensor) for tensor in tensors):
            return func(*args, **kwargs)
        kept = Copies().of(detached((args, kwargs)))
        random = torch.get_rng_state()
        alert = self._alert(func, kept)
        torch.set_rng_state(random)
        second_arguments = Copies().of(detached((args, kwargs)))
        second = func(*second_arguments[0], **second_arguments[1])
        torch.set_rng_state(random)
        result = func(*args, **kwargs)
        after = detached((args, kwargs))  # parameters are tensors too
        if alert:
            self._found(func, "not deterministic", "PyTorch's alert", kept)
        elif not _unset(func) and (
            what := difference((_defined(func, detached(result)), after), (_defined(func, second), second_arguments))
        ):
            self._found(func, "not deterministic", what, kept)
        for name in _hidden_writes(func, kept, after):
            self._found(func, "hidden write", name, kept)
        return result

    @staticmethod
    def _alert(func: Any, kept: Any) -> bool:
        args, kwargs = Copies().of(kept)
        torch.use_deterministic_algorithms(True)
        try:
            func(*args, **kwargs)
        except RuntimeError as error:
            return ALERT in str(error)
        finally:
            torch.use_deterministic_algorithms(False)
        return False

    def _found(self, func: Any, kind: str, what: str, kept: Any) -> None:
        self.findings.setdefault((func.name(), kind), Finding(func, kind, what, kept))


def _computes(func: Any) -> bool:
    """Neither a view nor one that changes a tensor's shape."""
    if not isinstance(func, torch._ops.OpOverload) or torch.Tag.inplace_view in func.tags:
        return False
    returns_view = any(value.alias_info and not value.alias_info.is_write for value in func._schema.returns)
    return not returns_view and not func.name().startswith(("aten::set_", "aten::resize_", "aten::_resize_"))


def _unset(func: Any) -> bool:
    return func.name().split(".")[0] in ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
                                         "aten::new_empty_strided", "aten::empty_permuted")  # fmt: skip


def _defined(func: Any, results: Any) -> Any:
    without = UNDEFINED.get(func.name().split(".")[0])
    return results if without is None else [result for i, result in enumerate(results) if i != without]


def _hidden_writes(func: Any, before: Any, after: Any) -> Iterator[str]:
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            continue
        old, new = (
            args[number] if not argument.kwarg_only and number < len(args) else kwargs.get(argument.name)
            for args, kwargs in (before, after)
        )
        if difference(old, new):
            yield argument.name


# --- in a scope -----------------------------------------------------------------------------------------------------


def findings(programs: Iterable[Program]) -> Iterator[Finding]:
    """Of all the programs together: one of each kind for each leaf."""
    known: dict[tuple[str, str], Finding] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for program in programs:
            leaves = Leaves()
            torch.manual_seed(1234)
            try:
                with leaves:
                    program()
            except Exception:
                continue  # the operator's own case says whether that is right
            known = leaves.findings | known
    yield from known.values()


def wrong_in_scope(finding: Finding) -> str:
    """What coop does wrong about it. Empty: nothing."""
    check = _recomputed if finding.kind == "not deterministic" else _overwritten
    with coop.budget("1GiB", "dtr", checks=3, tiny=0) as memory:
        return check(finding, memory)


def _recomputed(finding: Finding, memory: coop.Memory) -> str:
    args, kwargs = Copies().of(finding.arguments)
    results = [leaf for leaf in tree_leaves(finding.func(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    torch.ones(64).add_(1)
    if any(memory.state(result) == "evicted" for result in results):
        return f"{finding.name} is not deterministic ({finding.what}), and its result was evicted"
    return ""


def _overwritten(finding: Finding, memory: coop.Memory) -> str:
    copies = Copies()
    args, kwargs = copies.of(finding.arguments)
    derived = [tensor.clone() for tensor in copies.tensors]
    finding.func(*args, **kwargs)
    expected = [leaf for leaf in tree_leaves(finding.arguments) if isinstance(leaf, torch.Tensor)]
    if what := difference([tensor.clone() for tensor in expected], derived):
        return f"{finding.name} writes {finding.what}, and what was computed from it before has changed: {what}"
    return ""
