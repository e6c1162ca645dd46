"""The programs of a module's case, out of `module_db`: made, run forward and backward, in training
or evaluation."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

from opinfo.cases import Case, chosen_dtypes
from opinfo.copies import Copies
from opinfo.operators import backward, detached
from same import Program

MODULES: dict[str, ModuleInfo] = {module.name: module for module in module_db}
MODULE_FORMS = ("training", "evaluation")


def module_cases() -> Iterator[Case]:
    for name, module in MODULES.items():
        for dtype in chosen_dtypes(module.supported_dtypes("cpu")):
            for form in MODULE_FORMS:
                yield Case("module", name, str(dtype).removeprefix("torch."), form)


def module_programs(case: Case) -> Iterator[Program]:
    module, dtype = MODULES[case.name], getattr(torch, case.dtype)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    training = case.form == "training"
    inputs = module.module_inputs_func(module, device="cpu", dtype=dtype, requires_grad=training, training=training)
    for sample in list(inputs):
        yield partial(_run, module, sample, dtype, training)


def _run(module: ModuleInfo, sample: ModuleInput, dtype: torch.dtype, training: bool) -> Any:
    copies = Copies()
    args, kwargs = copies.of((sample.constructor_input.args, sample.constructor_input.kwargs))
    made = module.module_cls(*args, **kwargs).to(dtype).train(training)
    result = None
    if sample.forward_input is not None:
        args, kwargs = copies.of((sample.forward_input.args, sample.forward_input.kwargs))
        result = made(*args, **kwargs)
        backward(result)
    return {
        "result": detached(result),
        "arguments": detached(copies.tensors),
        "gradients": copies.gradients(),
        "state": {name: detached(value) for name, value in made.state_dict().items()},
        "parameters' gradients": {name: parameter.grad for name, parameter in made.named_parameters()},
    }
