"""A plan that is followed in a live program, to the same bits."""

import gzip
from dataclasses import replace

import pytest
import torch
from graphs import chain
from torch import nn

import coop
from coop.plan import PlanError, graph_of, solve, write
from same import assert_same, trained


class Training:
    """A network, its optimizer and batches that come in the same order every time."""

    def __init__(self, layer=nn.GELU):
        torch.manual_seed(1)
        layers = [part for _ in range(6) for part in (nn.Linear(64, 64), layer(), nn.Dropout(0.1))]
        self.model = nn.Sequential(*layers, nn.Linear(64, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.losses = []

    def step(self, rows=512):
        loss = self.model(torch.randn(rows, 64)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            self.losses.append(self.model(torch.randn(300, 64)).mean())
        self.model.train()

    def left(self):
        return trained(self.model, self.optimizer, self.losses)


@pytest.fixture(scope="module")
def plan():
    found = solve(coop.record(Training().step), 0.75, "treewidth", time_limit=20)
    assert found.increase > 0
    return found


def followed(plan, program, size=None, layer=nn.GELU, **options):
    """Runs it plainly and in the budget, with the engine's checks. Compares the bits, and returns
    the statistics."""
    plain = Training(layer)
    plain.step()  # the optimizer makes its state
    program(plain)
    planned = Training(layer)
    planned.step()
    known = plan if isinstance(plan, coop.plan.Plan) else coop.plan.read(plan)
    with coop.budget(size or int(1.1 * known.budget), plan=plan, checks=2, **options) as memory:
        memory.adopt(planned.model, planned.optimizer)
        program(planned)
        memory.check()
        stats, why = memory.stats(), memory.why_lost()
        assert_same(plain.left(), planned.left())
    assert stats.peak <= stats.budget
    return stats, why


def steps(count, rows=512):
    def program(training):
        for _ in range(count):
            training.step(rows)

    return program


def test_a_planned_program_gives_the_same_bits_and_is_planned_throughout(plan):
    stats, why = followed(plan, steps(4))
    assert (stats.planned_steps, stats.plan_losses, why) == (4, 0, "")
    assert stats.planned_ops >= 4 * 100 and stats.evictions > 0 and stats.rematerialisations > 0
    runs = len(plan.sequence()) - len(plan.program)
    assert stats.rematerialisations == pytest.approx(4 * runs, rel=0.3)


class Convolving(Training):
    """Its kernels request scratch as large as their output, before they request the output."""

    def __init__(self):
        torch.manual_seed(1)
        layers = [part for _ in range(6) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.losses = []
        self.batch = torch.rand(16, 8, 32, 32)

    def step(self):
        loss = self.model(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())


@pytest.fixture
def own_kernels():
    """PyTorch's own convolutions. oneDNN's differ between CPUs: where a backward convolution takes
    two pieces of scratch that are each larger than its result, the plan's one piece is not
    enough."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize("ratio", [0.7, 0.6])
def test_a_live_program_runs_again_just_what_was_planned(ratio):
    graph = graph_of(coop.record(Convolving().step))
    found = solve(graph, ratio, "treewidth")
    planned_runs = len(found.sequence()) - len(found.program)
    with coop.budget(int(1.01 * found.budget), plan=found, checks=2) as memory:
        training = Convolving()
        for _ in range(3):
            training.step()
        before = memory.stats()
        for _ in range(4):
            training.step()
        after = memory.stats()
    assert after.planned_steps - before.planned_steps == 4 and planned_runs > 3
    assert after.replays - before.replays == 4 * planned_runs
    assert after.searches == before.searches


def test_a_step_of_another_size_is_lost_and_the_next_is_planned_again(plan):
    def program(training):
        for rows in (512, 512, 384, 512, 200, 200, 512):
            training.step(rows)

    stats, why = followed(plan, program)
    assert stats.planned_steps == 4 and stats.plan_losses >= 3
    assert "of the plan is" in why


def test_an_evaluation_between_steps_does_not_matter(plan):
    def program(training):
        for _ in range(3):
            training.step()
            training.evaluate()

    stats, _ = followed(plan, program)
    assert stats.planned_steps == 3


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_after_an_exception_in_the_middle_of_a_step_the_next_is_planned(plan, where):
    def program(training):
        training.step()
        if where == "forward":
            with pytest.raises(RuntimeError):
                training.model[:6](torch.randn(512, 64)) @ torch.randn(63, 1)
        else:
            y = training.model[:6](torch.randn(512, 64))
            y.register_hook(lambda gradient: gradient.reshape(-1, 7))
            with pytest.raises(RuntimeError):
                y.square().mean().backward()
            training.optimizer.zero_grad()
        training.step()
        training.step()

    stats, _ = followed(plan, program)
    assert stats.planned_steps == 3 and stats.plan_losses >= 1


def test_a_plan_is_taken_from_a_file_and_for_paths_of_both_kinds(plan, tmp_path):
    write(plan, tmp_path / "step.plan")
    for path in (tmp_path / "step.plan", str(tmp_path / "step.plan")):
        assert followed(path, steps(2))[0].planned_steps == 2


def test_in_the_plans_own_budget_the_bits_are_the_same_too(plan):
    stats, _ = followed(plan, steps(3), size=-(-plan.peak // 64) * 64)
    assert stats.planned_steps == 3


def test_another_program_is_lost_and_its_bits_are_the_same(plan):
    stats, why = followed(plan, steps(2), size=2 * plan.budget, layer=nn.Tanh)
    assert stats.planned_steps == 0 and stats.plan_losses > 0
    assert "and the program ran aten::tanh" in why


def test_rrelu_is_followed():
    plan = solve(coop.record(Training(nn.RReLU).step), 0.8, "treewidth", time_limit=20)
    stats, _ = followed(plan, steps(2), layer=nn.RReLU)
    assert stats.planned_steps == 2


def test_two_forward_passes_for_one_step_are_lost_and_right(plan):
    def program(training):
        training.step()
        for _ in range(2):
            training.model(torch.randn(512, 64)).square().mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.step()

    stats, _ = followed(plan, program, size=2 * plan.budget)
    assert stats.planned_steps == 2 and stats.plan_losses >= 1


def test_a_budget_below_what_the_plan_needs_is_refused(plan):
    with pytest.raises(PlanError, match=rf"the plan needs .* \({plan.peak} bytes\), and the budget is .*Tip: "):
        coop.budget(plan.peak - 1, plan=plan)


def test_a_plan_that_is_no_plan_is_refused(plan, tmp_path):
    write(plan, path := tmp_path / "step.plan")
    whole = path.read_bytes()
    text = gzip.decompress(whole)
    for damaged in (whole[: len(whole) // 2], b"", b"plan", gzip.compress(text[:-30]), gzip.compress(b"[]\n")):
        path.write_bytes(damaged)
        with pytest.raises(PlanError, match=r"step\.plan"):
            coop.budget(1 << 30, plan=path)
    with pytest.raises(FileNotFoundError):
        coop.budget(1 << 30, plan=tmp_path / "none")
    with pytest.raises(PlanError, match="does not say for which ops"):
        coop.budget(1 << 30, plan=replace(plan, program=()))


@pytest.mark.parametrize(
    "steps_", [(("compute", 10**6),), (("free", 10**6),), (("free", -1),)], ids=["node", "value", "negative"]
)
def test_steps_for_what_the_program_does_not_have_are_refused(steps_):
    """A file may be damaged in a way that only the program shows."""
    graph = chain(3)
    whole = solve(graph, 100, "keep-all")
    broken = replace(whole, steps=(*(coop.plan.model.plan.Step(*step) for step in steps_), *whole.steps))
    with pytest.raises(PlanError):
        coop.budget(1 << 20, plan=broken)
