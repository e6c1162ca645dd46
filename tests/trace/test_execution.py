"""Execution traces of PyTorch say of a step what recording it says."""

import gzip
import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from steps import training
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from coop import cli, models
from coop.simulate import Player
from coop.trace import Op, Release, Source, Trace, TraceError, execution, read, record
from coop.trace.device import load
from coop.trace.formats import read_any
from coop.trace.peak import peak_bytes
from coop.trace.trace import FRESH, storages_of

pytestmark = pytest.mark.slow

GPU = Path(__file__).parent / "data" / "gpu_et.json"
GPU_KINETO = GPU.with_name("gpu_kineto.json")


def mlp():
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*hidden, nn.Linear(64, 10)), torch.randn(1024, 64)


def convolutions():
    layers = []
    for channels in (3, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)), torch.randn(64, 3, 16, 16)


def training_step(build, foreach: bool = False):
    torch.manual_seed(0)
    model, batch = build()
    target = torch.randint(0, 10, (len(batch),))
    optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)

    def step():
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def profiled(step, folder: Path) -> tuple[Path, Path]:
    paths = folder / "et.json", folder / "kineto.json"
    observer = ExecutionTraceObserver()
    observer.register_callback(str(paths[0]))
    with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer) as profiler:
        step()
    profiler.export_chrome_trace(str(paths[1]))
    return paths


@pytest.fixture(scope="module", params=[(mlp, False), (mlp, True), (convolutions, False)])
def both(request, tmp_path_factory) -> tuple[Trace, Path, Path]:
    """Of one step: recorded by coop, and by PyTorch."""
    step = training_step(*request.param)
    recorded = record(step)
    return recorded, *profiled(step, tmp_path_factory.mktemp("profiled"))


def large(trace: Trace) -> Counter[int]:
    return Counter(size for size in storages_of(trace.instructions)[1] if size > 1024)


def computing(trace: Trace) -> list[tuple[str, str]]:
    """Ops that are no views. Not those that make nothing but a tensor without bytes, nor what
    `torch.tensor` consists of: below autograd it is not seen.
    """
    return [
        (op.name, op.phase)
        for op in trace.ops
        if (op.writes or not op.outputs or any(output.alias == FRESH for output in op.outputs))
        and not op.name.startswith(("aten::empty.", "aten::lift_fresh"))
    ]


def without_scratch(trace):
    """Of a CPU, an execution trace does not tell it."""
    return Trace([replace(i, scratch=0) if isinstance(i, Op) else i for i in trace.instructions])


def test_it_has_the_ops_and_storages_of_a_recorded_step(both):
    recorded, et, kineto = both
    trace = execution.read(et, kineto)
    assert large(trace) == large(recorded)
    assert computing(trace) == computing(recorded)
    assert peak_bytes(trace) == pytest.approx(peak_bytes(without_scratch(recorded)), rel=0.03)
    assert trace.about["ops without a duration"] == 0 and trace.device == "measured"
    assert recorded.cost / 8 < trace.cost < recorded.cost * 8


@pytest.mark.parametrize("name", ["unet", "bert-large", "bilstm"])
def test_it_has_the_ops_and_storages_of_a_network(name, tmp_path):
    step = training(models.get(name, small=True))
    recorded, trace = record(step), execution.read(*profiled(step, tmp_path))
    assert large(trace) == large(recorded) and computing(trace) == computing(recorded)
    assert peak_bytes(trace) == pytest.approx(peak_bytes(without_scratch(recorded)), rel=0.03)


def test_it_tells_the_sources_by_their_use(both):
    recorded, et, _ = both
    kinds = [Counter(i.kind for i in t.instructions if isinstance(i, Source)) for t in (recorded, execution.read(et))]
    for kind in ("parameter", "state", "buffer"):
        assert kinds[0][kind] == kinds[1][kind]


def test_it_can_be_played(both):
    _, et, kineto = both
    player = Player(execution.read(et, kineto))
    assert player.floor().bytes < 0.6 * player.peak
    for steps in (1, 3):
        result = player.play(0.6, steps=steps, limit=20.0, checks=2)
        assert result.status == "ok" and result.stats.evictions > 0 and result.stats.peak <= result.budget


def test_without_kineto_ops_cost_nothing_or_what_a_device_says(both):
    _, et, _ = both
    free, modelled = execution.read(et), execution.read(et, device=load("a100"))
    assert free.cost == 0 and free.device == "no costs"
    assert modelled.cost > 0 and modelled.device == "a100"
    products = [op for op in modelled.ops if op.name in ("aten::addmm", "aten::convolution")]
    assert products and all(op.cost > 1e9 * load("a100").launch for op in products)


def test_work_on_a_gpu_counts_for_the_op_that_launched_it():
    trace = execution.read(GPU, GPU_KINETO)
    assert [(op.name, op.phase, op.cost) for op in trace.ops] == [
        ("aten::_to_copy", "forward", 20_250),
        ("aten::mm", "forward", 107_000),  # two kernels
        ("aten::relu_", "forward", 9_000),  # known by its correlation only
        ("aten::t", "backward", 0),
        ("aten::mm", "backward", 110_000),
        ("aten::_foreach_add_.List", "optimizer", 30_000),
    ]


def test_what_is_on_another_device_takes_no_memory_and_cannot_be_read_again():
    trace = execution.read(GPU, GPU_KINETO)
    copy, product, relu, view, _, update = trace.ops
    (weight,) = [i for i in trace.instructions if isinstance(i, Source)]
    assert (weight.bytes, weight.kind) == (256 * 256 * 4, "parameter")
    assert copy.inputs == () and not copy.replayable and product.replayable
    assert relu.writes == (0,) and view.outputs[0].alias == 0
    assert update.writes == (0,) and weight.carries == update.outputs[0].tensor
    assert trace.about["device"] == "cuda:0"


def test_an_address_that_is_used_again_begins_a_new_storage(tmp_path):
    content = json.loads(GPU.read_text())
    nodes = {node["id"]: node for node in content["nodes"]}
    product, update = nodes[23], nodes[31]
    product["inputs"]["values"][1] = product["inputs"]["values"][0]  # the activation is not used any more,
    for values in (product["outputs"]["values"], update["inputs"]["values"][1]):
        values[0][1] = 107  # and the gradient lies where it was
    (tmp_path / "et.json").write_text(json.dumps(content))
    trace = execution.read(tmp_path / "et.json")
    assert sorted(storages_of(trace.instructions)[1]) == [65536, 65536, 262144, 262144]
    relu = next(n for n, i in enumerate(trace.instructions) if isinstance(i, Op) and i.name == "aten::relu_")
    released = [i.tensor for i in trace.instructions[relu + 1 : relu + 3] if isinstance(i, Release)]
    assert trace.instructions[relu].outputs[0].tensor in released


def test_the_command_writes_a_trace_and_the_simulator_reads_the_file_itself(tmp_path, monkeypatch, capsys):
    zipped = tmp_path / "et.json.gz"
    with gzip.open(zipped, "wb") as file:
        file.write(GPU.read_bytes())
    assert read_any(zipped).instructions == execution.read(GPU).instructions
    output = tmp_path / "step.trace"
    monkeypatch.setattr(sys, "argv", ["coop", "trace", str(zipped), "--kineto", str(GPU_KINETO), "-o", str(output)])
    cli.main()
    assert read(output).instructions == execution.read(GPU, GPU_KINETO).instructions
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["coop", "simulate", str(zipped), "--budget", "100%", "--json"])
    cli.main()
    assert json.loads(capsys.readouterr().out)["status"] == "ok"


def test_what_is_wrong_is_told_in_one_sentence(tmp_path, monkeypatch, capsys):
    def refused(*args) -> str:
        monkeypatch.setattr(sys, "argv", ["coop", "trace", *map(str, args), "-o", str(tmp_path / "step.trace")])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2 and not (tmp_path / "step.trace").exists()
        return capsys.readouterr().err

    cut = tmp_path / "cut.json"
    cut.write_bytes(GPU.read_bytes()[:3000])
    assert "cut off" in refused(cut)
    assert "no schema and nodes" in refused(GPU_KINETO)
    assert "no traceEvents" in refused(GPU, "--kineto", GPU)
    assert "No such file" in refused(tmp_path / "missing.json")
    assert "not both" in refused(GPU, "--kineto", GPU_KINETO, "--device", "a100")
    assert "no device 'abacus'" in refused(GPU, "--device", "abacus")
    assert "--kineto is for execution traces" in refused("resnet50", "--kineto", GPU_KINETO)
    assert "it is recorded" in refused(GPU, "--batch", 3)

    def changed(old: str, new: str, of: Path = GPU) -> Path:
        path = tmp_path / "changed.json"
        path.write_text(of.read_text().replace(old, new))
        return path

    assert "schema 1.0.2" in refused(changed("1.1.1-chakra.0.0.4", "1.0.2-chakra.0.0.4"))
    assert "Tip: record the step without torch.compile" in refused(
        changed('"kernel_backend","type":"string","value":""', '"kernel_backend","type":"string","value":"triton"')
    )
    assert "cannot be read" in refused(changed('"ctrl_deps"', '"deps"'))
    assert "not of the same run" in refused(GPU, "--kineto", changed("aten::mm", "aten::bmm", GPU_KINETO))


def test_a_damaged_compressed_file_is_refused(tmp_path):
    path = tmp_path / "et.json.gz"
    path.write_bytes(gzip.compress(GPU.read_bytes())[:-30])
    with pytest.raises(TraceError, match="cut off"):
        execution.read(path)
    shutil.copy(GPU_KINETO, path)
    with pytest.raises(TraceError, match="not an execution trace"):
        execution.read(path)
