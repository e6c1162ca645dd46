"""One training program run one way: what the benchmarks start in processes of their own.

A `Way` says how: plainly, under a coop budget, or with one of PyTorch's own means against memory.
All ways start from the same seed, train the same model on the same batch with the same Adam, read
the loss after each step, and are compared by digests. Only ways that need coop import it: plain
PyTorch runs with its own allocator.
"""

import contextlib
import dataclasses
import functools
import gc
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import environment  # isort: skip  # noqa: F401  before torch
import numpy as np
import torch
from torch.utils import checkpoint as ckpt

from workloads import MODELS, Task

Tensors = Iterable[torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Way:
    """`name` is what tables show: eager, checkpoint, selective, accumulate, compile, save_on_cpu,
    save_on_disk, or POLICY@RATIO."""

    model: str
    optimizer: str  # adam | fused
    name: str = "eager"
    small: bool = False
    threads: int = 2
    policy: str = ""  # coop only
    budget: int = 0  # coop only; 0: coop.measure()
    switches: tuple[tuple[str, Any], ...] = ()


def nbytes(tensors: Tensors) -> int:
    """Bytes of the storages behind these tensors, each counted once."""
    seen = {}
    for tensor in tensors:
        storage = torch.Tensor.untyped_storage(tensor)
        seen[storage._cdata] = storage.nbytes()
    return sum(seen.values())


# What selective checkpointing keeps: results that are expensive to recompute.
_KEPT = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu")
_MICRO_BATCHES = 2


def _outside(pack: Callable[[np.ndarray], Any], unpack: Callable[[Any], np.ndarray]) -> Callable[[], Any]:
    """Tensors that autograd saves are moved elsewhere, and come back when backward reads them."""

    def saved(tensor: torch.Tensor) -> Any:
        if isinstance(tensor, torch.nn.Parameter):
            return tensor
        return pack(tensor.detach().numpy()), tensor.dtype

    def wanted(packed: Any) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else torch.from_numpy(unpack(packed[0]))

    return functools.partial(torch.autograd.graph.saved_tensors_hooks, saved, wanted)


class _File:
    """One saved array in a file of its own, which is deleted with it."""

    def __init__(self, array: np.ndarray) -> None:
        handle, self.path = tempfile.mkstemp(suffix=".npy")
        with os.fdopen(handle, "wb") as file:
            np.save(file, array)

    def read(self) -> np.ndarray:
        return np.load(self.path)

    def __del__(self) -> None:
        os.unlink(self.path)


_SAVING: dict[str, Callable[[], Any]] = {
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
    "save_outside": _outside(np.array, np.array),  # the same where PyTorch does not count it
    "save_on_disk": _outside(_File, _File.read),
}


class Job:
    """Model, optimizer and batch, made from the seed. Inside a coop scope if one is open."""

    def __init__(self, way: Way) -> None:
        torch.manual_seed(0)
        task: Task = MODELS[way.model](way.small)
        self.model, self.batch = task.model.train(), task.batch
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=way.optimizer == "fused" or None)
        self.losses: list[float] = []
        self._run: Any = self.model
        self._parts = [self.batch]
        self._saving: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        self._prepare(way.name, task)

    def _prepare(self, name: str, task: Task) -> None:
        if name in ("checkpoint", "selective"):
            options: dict[str, Any] = {"use_reentrant": False}
            if name == "selective":
                kept = [getattr(torch.ops.aten, op).default for op in _KEPT]
                options["context_fn"] = functools.partial(ckpt.create_selective_checkpoint_contexts, kept)
            for layer in task.layers:
                layer.forward = functools.partial(ckpt.checkpoint, layer.forward, **options)
        elif name == "accumulate":
            chunks = [tensor.chunk(_MICRO_BATCHES) for tensor in self.batch.values()]
            self._parts = [dict(zip(self.batch, part, strict=True)) for part in zip(*chunks, strict=True)]
        elif name in _SAVING:
            self._saving = _SAVING[name]
        elif name == "compile":
            from torch._functorch import config

            config.activation_memory_budget = 0.5
            self._run = torch.compile(self.model)

    def step(self) -> None:
        self.optimizer.zero_grad()
        total = 0.0
        for part in self._parts:
            with self._saving():
                loss = self._run(**part).loss / len(self._parts)
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        self.losses.append(total)

    def persistent(self) -> Iterator[torch.Tensor]:
        """Parameters, buffers, optimizer state, inputs: what lives from step to step, gradients
        apart."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        yield from self.batch.values()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))

    def digests(self) -> dict[str, str]:
        """Digests of everything that training changes. Outside of a scope."""
        gradients = (p.grad for p in self.model.parameters() if p.grad is not None)
        moments = (v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor))
        return {
            "loss": hashlib.sha256(repr(self.losses).encode()).hexdigest()[:16],
            "gradients": _digest(gradients),
            "parameters": _digest(self.model.parameters()),
            "buffers": _digest(self.model.buffers()),
            "moments": _digest(moments),
            "random state": _digest([torch.get_rng_state()]),
        }


def _digest(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def scope(way: Way) -> Iterator[Any]:
    """The coop scope of this way, or none."""
    torch.set_num_threads(way.threads)
    if not way.policy:
        yield None
        return
    import coop

    switches = dict(way.switches)
    match switches.get("swap"):
        case ("disk", folder):
            switches["swap"] = coop.Disk(folder)
    opened = coop.budget(way.budget, way.policy, **switches) if way.budget else coop.measure()
    with opened as memory:
        yield memory


@dataclasses.dataclass(frozen=True)
class Clock:
    wall: float
    cpu: float

    @classmethod
    def of(cls, job: Job, steps: int) -> "Clock":
        """Seconds for each step."""
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            job.step()
        return cls((time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps)


# --- memory of plain ways ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Profile:
    """The memory of one step, without coop.

    Peaks: of all live bytes, and of activations, which are all live bytes that are not persistent
    and not gradients; kernels' scratch and the optimizer's temporaries are among them.
    """

    persistent: int
    gradients: int
    activations: int
    total: int

    def budget(self, ratio: float) -> int:
        """What lives from step to step, and this share of the activations."""
        return self.persistent + int(ratio * self.activations)


def profile(job: Job) -> Profile:
    """Follows PyTorch's own reports of allocations through a step."""
    job.optimizer.zero_grad()
    persistent = nbytes(job.persistent())
    seen: set[int] = set()
    marks: list[tuple[int, int, int]] = []

    def accumulated(parameter: torch.Tensor) -> None:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            marks.append((time.time_ns(), 0, parameter.grad.nbytes))

    hooks = [p.register_post_accumulate_grad_hook(accumulated) for p in job.model.parameters() if p.requires_grad]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        job.step()
    for hook in hooks:
        hook.remove()
    events = profiler.profiler.kineto_results.events()
    marks += [(event.start_ns(), event.nbytes(), 0) for event in events if event.name() == "[memory]"]
    live = gradients = peak = activations = 0
    for _, change, gradient in sorted(marks, key=lambda mark: mark[0]):
        live += change
        gradients += gradient
        peak = max(peak, live)
        activations = max(activations, live - gradients)
    return Profile(persistent, gradients, activations, persistent + peak)
