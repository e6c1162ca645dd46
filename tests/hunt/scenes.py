"""Steps of several lines: what a program does with autograd, threads, hooks, Python and coop
itself.

A scene gets the machine, three register numbers and a number.
"""

import copy
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hunt.shapes import MOST, f32, fit, flt, mat, vec

REGISTERS, WEIGHTS = 8, 3


class Machine:
    """What a program works on."""

    def __init__(self, rows: int, columns: int, seed: int, memory: Any = None) -> None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed keeps a traceback for devices that are not there
        self.memory = memory
        self.r = [torch.randn(rows, columns) for _ in range(REGISTERS)]
        self.w = [torch.randn(rows, columns, requires_grad=True) for _ in range(WEIGHTS)]
        self.arrays: list[np.ndarray] = []
        self.models: dict[int, tuple[torch.nn.Module, torch.optim.Optimizer]] = {}
        self.pinned: list[torch.Tensor] = []
        self.read: list[Any] = []

    def put(self, register: int, value: torch.Tensor) -> None:
        if isinstance(value, torch.Tensor) and value.numel() <= MOST and value.layout is torch.strided:
            self.r[register] = value


def update(m: Machine, a: int, b: int, c: int, k: int) -> None:
    """Writes to a source."""
    w = m.w[k % WEIGHTS]
    with torch.no_grad():
        w -= 0.01 * fit(f32(m.r[a]), w).clamp(-1, 1)


def backward(m: Machine, a: int, b: int, c: int, k: int) -> None:
    w = m.w[k % WEIGHTS]
    h = fit(f32(m.r[a]).detach(), w)
    loss = ((h @ w.t()).tanh() @ w).relu().square().mean()
    loss.backward()
    m.put(c, w.grad * 10)


def backward_of(m: Machine, a: int, b: int, c: int, k: int) -> None:
    f32(m.r[a]).sum().backward(retain_graph=bool(k & 1))


def backward_with(m: Machine, a: int, b: int, c: int, k: int) -> None:
    x = m.r[a]
    x.backward(fit(f32(m.r[b]), x).to(x.dtype), retain_graph=bool(k & 1), inputs=m.w[: 1 + k % WEIGHTS])


def grad_of(m: Machine, a: int, b: int, c: int, k: int) -> None:
    loss = f32(m.r[a]).tanh().square().mean()
    for gradient in torch.autograd.grad(loss, m.w, allow_unused=True, create_graph=bool(k & 1), retain_graph=True):
        if gradient is not None:
            m.put(c, gradient)


def double_backward(m: Machine, a: int, b: int, c: int, k: int) -> None:
    x = f32(m.r[a]).detach().requires_grad_()
    (first,) = torch.autograd.grad((mat(x).tanh() @ fit(m.w[0], mat(x).t())).sigmoid().sum(), x, create_graph=True)
    first.square().sum().backward()
    m.put(c, x.grad)


def link(m: Machine, a: int, b: int, c: int, k: int) -> None:
    """A register that autograd knows."""
    m.put(c, fit(m.w[k % WEIGHTS], m.r[a]) * flt(m.r[a]))


def zero_grad(m: Machine, a: int, b: int, c: int, k: int) -> None:
    w = m.w[k % WEIGHTS]
    if k & 4 and w.grad is not None:
        w.grad.zero_()
    else:
        w.grad = None


def use_gradient(m: Machine, a: int, b: int, c: int, k: int) -> None:
    gradient = m.w[k % WEIGHTS].grad
    if gradient is not None:
        m.put(c, gradient)


def hook(m: Machine, a: int, b: int, c: int, k: int) -> None:
    x = m.r[a]
    if x.requires_grad and x._base is None:  # on some views, PyTorch itself crashes
        x.register_hook(lambda g: g * 0.5 if k & 1 else None)
        if k & 2:
            x.retain_grad()


def hook_raises(m: Machine, a: int, b: int, c: int, k: int) -> None:
    x = m.r[a]
    if x.requires_grad and x._base is None:  # on some views, PyTorch itself crashes

        def fail(gradient: torch.Tensor) -> None:
            raise (KeyboardInterrupt if k & 1 else ValueError)("from a hook")

        x.register_hook(fail)


class Scale(torch.autograd.Function):
    """Saves an input and an output; in place if asked."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, in_place: bool) -> torch.Tensor:
        if in_place:
            ctx.mark_dirty(x)
            y = x.mul_(2)
        else:
            y = x * 2
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return gradient * 2 + y * 0, None


def function(m: Machine, a: int, b: int, c: int, k: int) -> None:
    m.put(c, Scale.apply(f32(m.r[a]), bool(k & 1)))


@torch.library.custom_op("hunt::mix", mutates_args=())
def mix(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 0.5 + y.cumsum(0)


@torch.library.custom_op("hunt::damp", mutates_args=("x",))
def damp(x: torch.Tensor, by: float) -> None:
    x.mul_(by).add_(x.tanh() * 0.1)


@torch.library.custom_op("hunt::array", mutates_args=("x",))
def array(x: torch.Tensor) -> torch.Tensor:
    x.numpy()[...] *= 0.5  # past all operators
    return torch.from_numpy(x.numpy() + 1)


def custom(m: Machine, a: int, b: int, c: int, k: int) -> None:
    x = f32(m.r[a]).detach()
    if k % 3 == 0:
        m.put(c, mix(x, fit(f32(m.r[b]).detach(), x)))
    elif k % 3 == 1:
        damp(x, 0.9)
    else:
        m.put(c, array(x))


def checkpointed(m: Machine, a: int, b: int, c: int, k: int) -> None:
    x, w = f32(m.r[a]), m.w[k % WEIGHTS]  # not m: autograd would hold it, and it holds the result

    def part(v: torch.Tensor) -> torch.Tensor:
        return F.dropout((v * fit(w, v)).tanh(), 0.2)

    m.put(c, checkpoint(part, x, use_reentrant=bool(k & 4)))


def train(m: Machine, a: int, b: int, c: int, k: int) -> None:
    """A step of a small network with an optimizer."""
    kind = k % 6
    if kind not in m.models:
        nn = torch.nn
        model = nn.Sequential(
            nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(24, 4)
        )
        make: list[Callable[[Any], torch.optim.Optimizer]] = [
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
            lambda p: torch.optim.Adam(p, 0.01),
            lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
            lambda p: torch.optim.Adam(p, 0.01, fused=True),
            lambda p: torch.optim.RMSprop(p, 0.01),
            lambda p: torch.optim.Adagrad(p, 0.01),
        ]
        m.models[kind] = model, make[kind](model.parameters())
    model, optimizer = m.models[kind]
    loss = model(fit(f32(m.r[a]).detach(), torch.empty(8, 16)).nan_to_num().clamp(-9, 9)).square().mean()
    optimizer.zero_grad(set_to_none=bool(k & 8))
    loss.backward()
    optimizer.step()
    m.put(c, model[0].weight.detach())


def threads(m: Machine, a: int, b: int, c: int, k: int) -> None:
    """Two threads at once, on tensors of their own."""
    results: list[Any] = [None, None]

    def work(which: int, x: torch.Tensor) -> None:
        try:
            y = f32(x)
            for _ in range(1 + k % 4):
                y = (y * 0.9).tanh() + y.mean()
                y[..., :1].mul_(0.5)
            if y.requires_grad and k & 4:
                y.sum().backward(retain_graph=True)
            results[which] = y
        except BaseException as error:
            results[which] = error

    workers = [threading.Thread(target=work, args=(i, m.r[n].detach() if i else m.r[n])) for i, n in enumerate((a, b))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    m.put(c, results[0])
    m.put(b, results[1])


def read(m: Machine, a: int, b: int, c: int, k: int) -> None:
    m.read.append(vec(m.r[a], 3).tolist())


def make_array(m: Machine, a: int, b: int, c: int, k: int) -> None:
    m.arrays.append(m.r[a].detach().numpy())


def write_array(m: Machine, a: int, b: int, c: int, k: int) -> None:
    if m.arrays:
        m.arrays[k % len(m.arrays)][...] = k


def drop(m: Machine, a: int, b: int, c: int, k: int) -> None:
    m.r[c] = torch.zeros(4, 4)


def drop_array(m: Machine, a: int, b: int, c: int, k: int) -> None:
    if m.arrays:
        m.arrays.pop(k % len(m.arrays))


def seed(m: Machine, a: int, b: int, c: int, k: int) -> None:
    torch.manual_seed(k)


def random_state(m: Machine, a: int, b: int, c: int, k: int) -> None:
    state = torch.get_rng_state()
    m.put(c, torch.randn(8, 8))
    torch.set_rng_state(state)


def load(m: Machine, a: int, b: int, c: int, k: int) -> None:
    """Weights taken from a copy."""
    saved = copy.deepcopy(m.w[k % WEIGHTS].detach())
    with torch.no_grad():
        m.w[(k + 1) % WEIGHTS].copy_(saved)


def weight_data(m: Machine, a: int, b: int, c: int, k: int) -> None:
    w = m.w[k % WEIGHTS]
    w.data = fit(f32(m.r[a]).detach(), w).clone()


# --- coop's own calls: nothing, in a plain run -------------------------------------------------------------------------


def pin(m: Machine, a: int, b: int, c: int, k: int) -> None:
    x = m.r[a].detach()  # plainly too: a mode counts it
    if m.memory is not None and len(m.pinned) < 2:
        m.pinned.append(m.memory.pin(x))


def unpin(m: Machine, a: int, b: int, c: int, k: int) -> None:
    if m.pinned:
        with suppress(RuntimeError):  # a pin ends with the memory, and a resize may have given it other memory
            m.memory.unpin(m.pinned.pop())


def materialise(m: Machine, a: int, b: int, c: int, k: int) -> None:
    if m.memory is not None:
        m.memory.materialise(m.r[a])


def commit(m: Machine, a: int, b: int, c: int, k: int) -> None:
    if m.memory is not None:
        m.memory.commit(m.r[a])


def check(m: Machine, a: int, b: int, c: int, k: int) -> None:
    if m.memory is not None:
        m.memory.check()


SCENES = {
    f.__name__: f
    for f in (
        update, backward, backward_of, backward_with, grad_of, double_backward, link, zero_grad, use_gradient, hook,
        hook_raises, function, custom, checkpointed, train, threads, read, make_array, write_array, drop, drop_array,
        seed, random_state, load, weight_data, pin, unpin, materialise, commit, check,
    )
}  # fmt: skip

GRAPH = [
    "link",
    "link",
    "link",
    "link",
    "backward_of",
    "backward_with",
    "grad_of",
    "hook",
    "hook_raises",
    "function",
    "checkpointed",
]
"""Steps that need and make a graph of autograd, `link` most often."""
