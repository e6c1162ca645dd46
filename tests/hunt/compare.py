"""Runs a program plainly and in budgets, and says where the results differ."""

import ctypes
import random
import warnings
from typing import Any

import torch

import coop
from coop.policies import POLICIES
from hunt.features import Features
from hunt.program import Interpreter, OutOfRoom, Program, Watch
from hunt.scenes import unpin

Settings = dict[str, Any]
TRIES = 7


def random_settings(rng: random.Random) -> Settings:
    """Random settings of a budget: how tight it is, the policy, and switches."""
    settings: Settings = {
        "ratio": rng.choice([0.0, 0.1, 0.2, 0.3, 0.5, 0.7]),
        "policy": "coop" if rng.random() < 0.5 else rng.choice(sorted(POLICIES)),
        "checks": rng.choice([0, 0, 0, 2, 2, 2, 3]),
    }
    if rng.random() < 0.6:
        settings["tiny"] = rng.choice([0, 0, 64, 4096])
    for switch in ("window", "partition", "per_byte", "keep_dead", "in_place", "move", "rescue", "needed_only"):
        if rng.random() < 0.08:
            settings[switch] = False
    if rng.random() < 0.2:
        settings["record_backward"] = True
    if rng.random() < 0.1:
        settings["max_versions"] = rng.choice([0, 1, 2])
    if rng.random() < 0.1:
        settings["max_depth"] = rng.choice([1, 2, 5])
    if rng.random() < 0.2:
        settings |= {"swap": rng.choice([65536, 4 << 20]), "swap_least": rng.choice([0, 1024])}
    return settings


def bits(value: Any) -> Any:
    """Everything that can differ: shape, strides and bytes of a tensor."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.layout is not torch.strided:
            return repr(value.layout), bits(value.to_dense())
        flat = value.resolve_conj().resolve_neg().contiguous()
        raw = ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.numel() else b""
        return tuple(value.shape), value.stride(), str(value.dtype), value.is_conj(), value.requires_grad, raw
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return repr(value)  # a NaN is equal to itself


def tensors_of(run: Interpreter) -> dict[str, Any]:
    m = run.machine
    return {
        **{f"r[{i}]": tensor for i, tensor in enumerate(m.r)},
        **{f"w[{i}]": tensor for i, tensor in enumerate(m.w)},
        **{f"w[{i}].grad": tensor.grad for i, tensor in enumerate(m.w)},
        **{
            f"model {kind}": {**model.state_dict(), "optimizer": optimizer.state_dict()["state"]}
            for kind, (model, optimizer) in m.models.items()
        },
    }


@torch.inference_mode()
def results(run: Interpreter, state: torch.Tensor) -> dict[str, Any]:
    return {
        "raised": run.log,
        "read": repr(run.machine.read),
        "random state": bits(state),
        **{name: bits(value) for name, value in tensors_of(run).items()},
    }


def plain(program: Program) -> dict[str, Any]:
    torch.set_num_threads(program.threads)
    run = Interpreter(program).run()
    return results(run, torch.get_rng_state())


def managed(program: Program, memory: coop.Memory, watch: Watch | None = None) -> dict[str, Any]:
    torch.set_num_threads(program.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*reading them is an error now")
        try:
            with memory:
                run = Interpreter(program, memory, watch).run()
                while run.machine.pinned:
                    unpin(run.machine, 0, 0, 0, 0)
                state = torch.get_rng_state()
        except UserWarning as error:
            raise OutOfRoom(str(error)) from None
    found = results(run, state)
    found["messages"] = run.messages
    return found


def difference(expected: dict[str, Any], actual: dict[str, Any]) -> str:
    """The difference as a sentence; empty: none."""
    for name, value in expected.items():
        if actual[name] != value:
            if name == "raised":
                at = next(i for i, (a, b) in enumerate(zip(value, actual[name], strict=True)) if a != b)
                return f"raised: step {at} raises {value[at] or 'nothing'} plainly, {actual[name][at] or 'nothing'} in a budget: {actual['messages']}"
            return f"{name}: {_told(value)} plainly, {_told(actual[name])} in a budget"
    return ""


def _told(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 6:
        shape, strides, dtype, conj, grad, raw = value
        return f"{dtype} {shape} {strides} {'conj ' * conj}{'grad ' * grad}{raw[:32].hex()}"
    return str(value)[:200]


def without_limit(program: Program) -> tuple[coop.Stats, dict[str, Any]]:
    memory = coop.measure()
    found = managed(program, memory)
    return memory.stats(), found


def in_budget(
    program: Program, measured: coop.Stats, settings: Settings, features: set[int] | None = None
) -> dict[str, Any] | None:
    """The results in the smallest budget that is enough, from the ratio upwards; None: none is."""
    options = dict(settings)
    ratio = options.pop("ratio")
    size = max(int(measured.floor + ratio * (measured.peak - measured.floor)), 4096)
    for _ in range(TRIES):
        memory = coop.budget(size, events=features is not None, **options)
        watch = Features(memory, options.get("tiny", 512)) if features is not None else None
        try:
            found = managed(program, memory, watch)
        except (OutOfRoom, coop.OutOfBudget):
            size = int(size * 1.3) + 1024
            continue
        if features is not None and watch:
            features |= watch.found
        return found
    return None
