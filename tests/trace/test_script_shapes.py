"""A script is traced by its shapes alone, as one rank of many, and everything that it changes is
put back."""

import os
import sys
import textwrap

import pytest
import torch
import torch.distributed as dist
from steps import sources

from command import coop, refused
from coop.trace import Op, Release, Source, read
from coop.trace.collectives import is_collective
from coop.trace.device import load
from coop.trace.fake_rank import FakeRank
from coop.trace.peak import peak_bytes
from coop.trace.script_shapes import NeedsValues, trace_shapes
from coop.trace.trace import storages_of

pytestmark = pytest.mark.slow

LAYERS, WIDTH, ROWS = 6, 1024, 2048
WEIGHTS = 4 * WIDTH * WIDTH * LAYERS
"""Bytes of all parameters. There are no biases, so that they can be divided among 64 ranks."""

FSDP = f"""
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
model = nn.Sequential(*[nn.Sequential(nn.Linear({WIDTH}, {WIDTH}, bias=False), nn.GELU()) for _ in range({LAYERS})])
model.cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    loss = model(torch.randn({ROWS}, {WIDTH}, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
raise AssertionError("the script goes on after its step is recorded")
"""

DDP = f"""
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_node_local_rank())
model = nn.Sequential(*[nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})]).to(device)
model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randn({ROWS}, {WIDTH}, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TENSOR_PARALLEL = f"""
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("data", "tensor"))
with torch.device("meta"):
    model = nn.Sequential(*[nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})])
ways = {{str(i): ColwiseParallel() if i % 2 == 0 else RowwiseParallel() for i in range({LAYERS})}}
parallelize_module(model, mesh["tensor"], ways)
fully_shard(model, mesh=mesh["data"])
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(4):
    model(torch.randn({ROWS}, {WIDTH}, device="cuda")).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def main_stays():
    """A script takes the place of `__main__`, as if nothing came after it."""
    main, arguments, path, hook = sys.modules["__main__"], list(sys.argv), list(sys.path), sys.excepthook
    yield
    sys.modules["__main__"], sys.argv[:], sys.path[:], sys.excepthook = main, arguments, path, hook


def traced(script: str, world_size: int | None = None, **options):
    found = trace_shapes("train.py", script.encode(), [], device=load("a100"), world_size=world_size, **options)
    assert found is not None
    return found


def total(trace, kind: str) -> int:
    return sum(source.bytes for source in sources(trace, kind))


def collectives(trace) -> list[Op]:
    return [op for op in trace.ops if is_collective(op.name)]


@pytest.mark.parametrize("world", [8, 64])
def test_a_rank_has_its_share_of_parameters_gradients_and_moments(world):
    trace = traced(FSDP, world, rank=3)
    assert total(trace, "parameter") == total(trace, "gradient") == WEIGHTS // world
    counters = 4 * LAYERS
    assert total(trace, "state") == 2 * WEIGHTS // world + counters
    assert (trace.about["rank"], trace.about["world_size"], trace.about["values_asked"]) == (3, world, 2)
    assert all(source.carries is not None for source in sources(trace, "parameter") + sources(trace, "state"))


@pytest.mark.parametrize("world", [8, 64])
def test_collectives_are_not_repeated_and_cost_what_a_ring_takes(world):
    trace, a100 = traced(FSDP, world), load("a100")
    found = collectives(trace)
    assert [op.name for op in found].count("c10d::_allgather_base_") == 2 * LAYERS
    assert [op.name for op in found].count("c10d::_reduce_scatter_base_") == LAYERS
    assert not any(op.replayable for op in found)
    assert all(len(op.writes) == 1 for op in found)
    link = a100.interconnect.bandwidth if world == 8 else a100.interconnect.network
    layer = WEIGHTS // LAYERS
    assert {op.cost for op in found} == {round(1e9 * (a100.launch + layer * (world - 1) // world / link))}


def test_gathered_parameters_live_from_resize_to_resize():
    trace = traced(FSDP, 64)
    layer = WEIGHTS // LAYERS
    storage_of, _ = storages_of(trace.instructions)
    gathered = {
        storage_of[i.tensor] for i in trace.instructions if isinstance(i, Source) and i.kind == "" and i.bytes == layer
    }
    assert len(gathered) == 2 * LAYERS  # for forward and for backward
    alive, most = dict.fromkeys(gathered, 0), 0
    for i in trace.instructions:
        made = [o.tensor for o in i.outputs] if isinstance(i, Op) else [i.tensor]
        for storage in (storage_of[tensor] for tensor in made if storage_of[tensor] in alive):
            alive[storage] += -1 if isinstance(i, Release) else 1
        most = max(most, sum(map(bool, alive.values())))
    assert not any(alive.values()) and most == 1  # the next one is in one flat piece by then


def test_the_peak_of_a_rank_falls_with_the_number_of_ranks_to_what_is_not_sharded():
    peaks = {world: peak_bytes(traced(FSDP, world), 512) for world in (8, 64)}
    # At the end of the forward pass there are no gradients: parameters and two moments are sharded.
    assert peaks[8] - peaks[64] == 3 * WEIGHTS * 7 // 64
    assert peaks[64] > 4 * ROWS * WIDTH * LAYERS


def test_ddp_has_all_of_the_model_on_each_rank_and_reduces_all_of_its_gradients():
    trace = traced(DDP, 8)
    assert total(trace, "parameter") == total(trace, "gradient") == WEIGHTS
    reduced = [op for op in collectives(trace) if op.name == "c10d::allreduce_"]
    assert reduced and all(op.phase == "backward" and op.writes and not op.replayable for op in reduced)
    a100 = load("a100")
    seconds = sum(op.cost for op in reduced) / 1e9 - len(reduced) * a100.launch
    assert seconds == pytest.approx(2 * WEIGHTS * 7 / 8 / a100.interconnect.bandwidth, rel=0.01)
    halves = [op for op in trace.ops if op.name == "aten::_to_copy"]
    assert halves, "autocast for the GPU is that of the CPU here"


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_tensor_parallel_on_a_mesh_of_two_dimensions():
    trace = traced(TENSOR_PARALLEL, 8)
    assert total(trace, "parameter") == WEIGHTS // 8
    names = {op.name for op in collectives(trace)}
    assert {"c10d::_allgather_base_", "_c10d_functional::all_reduce"} <= names
    waiting = [op for op in collectives(trace) if "wait_tensor" in op.name]
    assert all(op.cost == 0 and not any(output.bytes for output in op.outputs) for op in waiting)


MESSAGES = f"""
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
weight = torch.randn({WIDTH}, {WIDTH}, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(4):
    x = torch.empty({ROWS}, {WIDTH}, device="cuda")
    dist.recv(x, rank - 1)
    y = x @ weight
    dist.send(y.detach(), rank + 1)
    y.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_is_received_is_written_and_what_is_sent_is_read():
    trace, a100 = traced(MESSAGES, 4, rank=1), load("a100")
    received, sent = collectives(trace)
    assert (received.name, received.writes) == ("c10d::recv_", (0,))
    assert (sent.name, sent.writes, len(sent.inputs)) == ("c10d::send", (), 1)
    seconds = a100.launch + 4 * ROWS * WIDTH / a100.interconnect.bandwidth
    assert received.cost == sent.cost == round(1e9 * seconds)


def test_a_script_of_one_process_is_traced_as_well():
    script = FSDP.replace("dist.init_process_group", "print").replace("fully_shard(", "str(")
    script = script.replace("dist.get_rank() %", "").replace('torch.device("cuda", int(os.environ["LOCAL_RANK"]))', "0")
    script = script.replace('print("nccl", device_id=0)', "pass")
    trace = traced(script)
    assert total(trace, "parameter") == WEIGHTS and not collectives(trace) and "world_size" not in trace.about
    foreach = [op for op in trace.ops if op.name.startswith("aten::_foreach")]
    assert foreach, "optimizers take all parameters at once, as on a GPU"


def test_everything_is_as_before_afterwards():
    before = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    resize, init, count = torch.UntypedStorage.resize_, dist.init_process_group, torch.cuda.device_count
    traced(FSDP, 8)
    with pytest.raises(ZeroDivisionError):
        traced(FSDP.replace("loss.backward()", "1 / 0"), 8)
    assert before == {name: os.environ.get(name) for name in before}
    assert not dist.is_initialized()
    assert torch.UntypedStorage.resize_ is resize and "resize_" not in vars(torch.UntypedStorage)
    assert dist.init_process_group is init and torch.cuda.device_count is count
    assert torch.ones(2).sum().item() == 2


def test_what_depends_on_values_is_told():
    script = FSDP.replace('print("loss", loss.item())', "loss.expand(8).nonzero()")
    with pytest.raises(NeedsValues, match=r"calls aten.nonzero.default, whose result depends on values. Tip"):
        traced(script, 8)


def test_a_hook_that_reads_what_was_reduced_is_refused():
    script = DDP.replace("optimizer =", "model.register_comm_hook(None, print)\noptimizer =")
    with pytest.raises(NotImplementedError, match="communication hook print"):
        traced(script, 8)


def test_a_script_that_names_another_rank_is_told():
    with pytest.raises(ValueError, match="init_process_group has world_size=4, and the trace is asked for with 8"):
        traced(FSDP.replace('"nccl"', '"nccl", world_size=4'), 8)


def test_ranks_are_numbered_by_machines():
    with FakeRank(11, 64, 8) as rank:
        assert (rank.local_rank, rank.per_node) == (3, 8)
        assert [os.environ[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")] == [
            "11",
            "3",
            "1",
            "8",
        ]
    with pytest.raises(ValueError, match="there is no rank 64 among 64: they are 0 to 63"):
        FakeRank(64, 64)


def test_the_command_traces_a_rank_which_is_simulated_and_planned(tmp_path, capsys):
    script, file = tmp_path / "train.py", tmp_path / "rank0.trace"
    script.write_text(FSDP)
    ended = coop(capsys, "trace", script, "--shapes", "--world-size", 64, "--device", "a100", "-o", file)
    assert ended.code == 0 and "0 of 64" in ended.err and "asked for 2 values" in ended.err
    trace = read(file)
    assert trace.device == "a100" and trace.about["swap_bandwidth"] == [12e9, 12e9]
    ended = coop(capsys, "simulate", file, "--budget", "80%", "--json")
    assert ended.code == 0 and '"status": "ok"' in ended.out
    ended = coop(capsys, "plan", file, "--budget", "80%", "--planner", "chen-greedy", "-o", tmp_path / "rank0.plan")
    assert ended.code == 0 and (tmp_path / "rank0.plan").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--world-size", "8"], "--world-size is for --shapes. Tip: torchrun -m coop trace records ranks that run"),
        (["--shapes", "--rank", "1"], "--rank needs --world-size: one rank of how many?"),
        (["--shapes", "--world-size", "8", "--rank", "8"], "there is no rank 8 among 8: they are 0 to 7"),
        (["--shapes", "--go-on"], "--go-on is for scripts that run; with --shapes nothing is computed"),
        (["--shapes", "--device", "h100"], "there is no device 'h100'"),
        (["--shapes", "--world-size", "2", "--device", "raspberry-pi"], "'raspberry-pi' does not say how fast ranks"),
        (["--shapes", "--step", "9"], "train.py ended before step 9 of an optimizer. Tip: --step"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(tmp_path, capsys, options, message):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent("import torch\n"))
    assert message in refused(capsys, "trace", script, *options, "-o", tmp_path / "x.trace")
