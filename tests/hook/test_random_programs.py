"""Random programs out of dozens of ops, compared with plain eager at random budgets, with every
policy and all checks on."""

import dataclasses

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch.nn import functional as F

import coop
from coop.policies import POLICIES
from same import assert_same, seeded

N = 48  # tensors are N x N: 9 KiB, well above what is too small to record

UNARY = {
    "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": lambda x: (x * 0.1).exp(), "neg": torch.neg,
    "softmax": lambda x: x.softmax(-1), "layer_norm": lambda x: F.layer_norm(x, (N,)), "gelu": F.gelu, "clone": torch.clone,
    "cumsum": lambda x: x.cumsum(0) / N, "sort": lambda x: x.sort(dim=1)[0], "argsort": lambda x: x.argsort(1).float() / N,
    "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(3, 1), "tril": torch.tril, "normalize": lambda x: F.normalize(x, dim=1),
    "double": lambda x: x.double().tanh().float(), "half": lambda x: x.bfloat16().float(), "bool": lambda x: (x > 0).float(),
    "dropout": lambda x: F.dropout(x, 0.3), "noise": lambda x: x + torch.randn_like(x) * 0.1,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()), "rrelu": lambda x: F.rrelu(x, training=True),
    "fill": lambda x: torch.empty_like(x).uniform_(-1, 1) * x, "full": lambda x: torch.full_like(x, 0.5) + x,
    "contiguous": lambda x: x.t().contiguous(), "reshape": lambda x: x.t().reshape(N, N), "pad": lambda x: F.pad(x, (1, 0))[:, :N],
    "conv": lambda x: F.conv2d(x[None, None], torch.ones(1, 1, 3, 3) / 9, padding=1)[0, 0],
    "pool": lambda x: F.max_pool2d(x[None, None], 3, 1, 1)[0, 0], "logsumexp": lambda x: x - x.logsumexp(1, keepdim=True),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(N), torch.ones(N), training=True),
    "group_norm": lambda x: F.group_norm(x, 4), "fft": lambda x: torch.fft.rfft(x).abs()[:, :1] + x,
    "where": lambda x: torch.where(x > 0, x, 0.1), "gather": lambda x: x.gather(1, x.argsort(1)), "item": lambda x: x + x[0, 0].item(),
    "index": lambda x: x[torch.arange(N - 1, -1, -1)], "outer": lambda x: torch.outer(x[0], x[1]) * 0.1, "numpy": lambda x: x + float(x.detach().numpy()[0, 0]),
}  # fmt: skip
BINARY = {
    "add": torch.add, "mul": torch.mul, "sub": lambda a, b: a - 0.5 * b, "matmul": lambda a, b: (a @ b) / N, "max": torch.maximum,
    "cat": lambda a, b: torch.cat([a[: N // 2], b[N // 2 :]]), "stack": lambda a, b: torch.stack([a, b]).mean(0), "addmm": lambda a, b: torch.addmm(a, a, b) / N,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3), "bmm": lambda a, b: torch.bmm(a[None], b[None])[0] / N,
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], a[None, None])[0, 0],
    "foreach": lambda a, b: torch._foreach_add([a, b], 1.0)[1] * 0.5, "scatter": lambda a, b: a.scatter(1, b.argsort(1), b),
}  # fmt: skip
VIEWS = {
    "t": lambda x: x.t(), "rows": lambda x: x[N // 2 :], "columns": lambda x: x[:, : N // 2], "diagonal": lambda x: x.diagonal(),
    "step": lambda x: x[::2], "view": lambda x: x.view(-1) if x.is_contiguous() else x, "select": lambda x: x[3], "detach": lambda x: x.detach(),
    "chunk": lambda x: x.chunk(2, 0)[1], "unbind": lambda x: x.unbind(0)[2], "expand": lambda x: x[:1].expand(4, -1),
}  # fmt: skip
IN_PLACE = {
    "relu_": lambda x: x.relu_(), "mul_": lambda x: x.mul_(0.9), "add_": lambda x: x.add_(0.1), "zero_": lambda x: x.zero_(),
    "normal_": lambda x: x.normal_(), "clamp_": lambda x: x.clamp_(-1, 1), "masked_fill_": lambda x: x.masked_fill_(x > 0.5, 0.0),
    "tanh_": lambda x: x.tanh_(), "copy_": lambda x: x.copy_(x * 2), "fill_": lambda x: x.fill_(0.3), "dropout_": lambda x: F.dropout(x, 0.2, inplace=True),
    "foreach_": lambda x: torch._foreach_mul_([x], 0.7), "out": lambda x: torch.tanh(x, out=x),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Step:
    kind: str
    name: str
    a: int
    b: int


def steps():
    number = st.integers(0, 7)
    return st.lists(
        st.one_of(
            *[
                st.builds(Step, st.just(kind), st.sampled_from(sorted(table)), number, number)
                for kind, table in (
                    ("unary", UNARY),
                    ("binary", BINARY),
                    ("in place", IN_PLACE),
                    ("in place of view", IN_PLACE),
                )
            ],
            st.builds(
                Step,
                st.sampled_from(["drop", "use view", "source", "backward"]),
                st.sampled_from(sorted(VIEWS)),
                number,
                number,
            ),
        ),
        min_size=5,
        max_size=60,
    )


def interpret(program):
    """Eight registers. Views, in-place ops on what others view, dropped and reused tensors,
    gradients now and then."""
    registers = [torch.randn(N, N) for _ in range(8)]
    weight = torch.randn(N, N, requires_grad=True)
    kept = []
    for step in program:
        a, b = registers[step.a], registers[step.b]
        match step.kind:
            case "unary":
                registers[step.b] = UNARY[step.name](a)
            case "binary":
                registers[step.b] = BINARY[step.name](a, b)
            case "in place":
                with torch.no_grad():
                    IN_PLACE[step.name](a)
            case "in place of view":
                with torch.no_grad():
                    views = sorted(VIEWS)
                    view = VIEWS[views[step.b % len(views)]](a)
                    if step.name != "dropout_" and views[step.b % len(views)] != "expand":
                        IN_PLACE[step.name](view)
            case "drop":
                registers[step.a] = torch.zeros(N, N)
            case "use view":
                kept.append(VIEWS[step.name](a))
                if len(kept) > 6:
                    kept.pop(0)
            case "source":
                with torch.no_grad():
                    weight -= 0.01 * a.clamp(-1, 1)
            case "backward":
                loss = ((a.detach() @ weight).tanh() @ weight).relu().square().mean()
                (grad,) = torch.autograd.grad(loss, weight)
                registers[step.b] = grad * 10
    return [r.clone() for r in registers], [k.clone() for k in kept], weight.detach()


@pytest.mark.parametrize("policy", POLICIES)
@hypothesis.settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    print_blob=True,
    derandomize=True,
)
@hypothesis.given(program=steps(), ratio=st.floats(0.3, 0.9))
def test_random_program(policy, program, ratio):
    run_random(policy, program, ratio)


def run_random(policy, program, ratio, **options):
    expected = seeded(lambda: interpret(program))
    with coop.measure() as memory:
        seeded(lambda: interpret(program))
    peak = memory.stats().peak
    size = int(peak * ratio)
    while True:
        try:
            with coop.budget(size, policy, checks=2, **options):
                actual = seeded(lambda: interpret(program))
            break
        except coop.OutOfBudget:
            size = int(size * 1.15)
            assert size < peak * 1.5
    assert_same(expected, actual)


@pytest.mark.parametrize("switch", ["window", "partition", "per_byte", "keep_dead", "in_place", "move"])
@hypothesis.settings(
    max_examples=10, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), derandomize=True
)
@hypothesis.given(program=steps(), ratio=st.floats(0.4, 0.8))
def test_random_program_with_a_part_of_coop_switched_off(switch, program, ratio):
    run_random("coop", program, ratio, **{switch: False})
