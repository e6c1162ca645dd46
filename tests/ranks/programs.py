"""Small programs of several ranks, each a function that returns what it has computed.

They are run plainly and inside of budgets by compare.py, and have to give the same bits. Each makes
enough activations that a budget below its peak evicts. `late` lets one rank come later than the
others, so that bytes are on their way while the other goes on.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Program = Callable[[int, int], Any]

PROGRAMS: dict[str, Program] = {}
ROWS, WIDTH = 64, 256


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def late(rank: int, seconds: float = 0.02) -> None:
    if rank == 1:
        time.sleep(seconds)


def activations(rank: int, count: int = 12) -> list[torch.Tensor]:
    """Recomputable, and held: what a budget evicts."""
    torch.manual_seed(rank)
    values = [torch.randn(ROWS, WIDTH)]
    for i in range(count):
        values.append(torch.sin(values[-1] * (1 + i / 7)) + 0.1)
    return values


def press(values: list[torch.Tensor]) -> torch.Tensor:
    """Reads all of them, in an order that brings back what was evicted."""
    total = torch.zeros(ROWS, WIDTH)
    for value in [*values[::2], *values[1::2], *reversed(values)]:
        total = total + value * 0.5
    return total


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def network(layers: int = 6, width: int = 64) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*[Block(width) for _ in range(layers)], nn.Linear(width, 8))


def batches(rank: int, count: int = 3, rows: int = 256, width: int = 64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(rows, width, generator=generator) for _ in range(count)]


def train(model: nn.Module, rank: int, *, optimizer: Any = None, steps: int = 3) -> list[Any]:
    chosen = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for batch in batches(rank, steps):
        loss = model(batch).square().mean()
        loss.backward()
        chosen.step()
        chosen.zero_grad()
        losses.append(loss.detach())
    return [losses, [parameter.detach() for parameter in model.parameters()]]


# --- collectives ------------------------------------------------------------------------------------------------------


@program
def all_reduce(rank: int, world: int) -> Any:
    values = activations(rank)
    summed = values[3] * 2
    dist.all_reduce(summed)
    made = summed.sin()
    return [press(values), summed, made, press([summed, made])]


@program
def all_reduce_of_what_was_made_from_it(rank: int, world: int) -> Any:
    """What was made from a buffer before it is reduced keeps its value."""
    values = activations(rank)
    buffer = values[2].clone()
    before = [buffer.cos() for _ in range(6)]
    dist.all_reduce(buffer)
    total = press(values)
    return [total, press(before), buffer, before]


@program
def all_reduce_on_views(rank: int, world: int) -> Any:
    values = activations(rank)
    base = values[4] * 3
    dist.all_reduce(base[: ROWS // 2])
    dist.reduce(base[ROWS // 2 :], 0)
    return [press(values), base if rank == 0 else base[: ROWS // 2]]


@program
def all_reduce_asynchronous(rank: int, world: int) -> Any:
    values = activations(rank)
    buffers = [value.clone() for value in values[:6]]
    works = []
    for buffer in buffers:
        late(rank)
        works.append(dist.all_reduce(buffer, async_op=True))
    total = press(values)
    for work in works:
        work.wait()
    return [total, buffers, press(values)]


@program
def all_reduce_that_nobody_waits_for(rank: int, world: int) -> Any:
    values = activations(rank)
    for value in values[:4]:
        dist.all_reduce(value.clone(), async_op=True)
    late(rank)
    total = press(values)
    dist.barrier()
    return [total, press(values)]


@program
def broadcast(rank: int, world: int) -> Any:
    values = activations(rank)
    buffers = [value * 2 for value in values[:4]]
    for i, buffer in enumerate(buffers):
        late(rank)
        dist.broadcast(buffer, i % world)
    return [press(values), buffers, press(buffers)]


@program
def gather_lists(rank: int, world: int) -> Any:
    values = activations(rank)
    gathered = [torch.empty(ROWS, WIDTH) for _ in range(world)]
    dist.all_gather(gathered, values[5])
    total = press(values)
    one = [torch.empty(ROWS, WIDTH) for _ in range(world)] if rank == 0 else None
    dist.gather(values[6], one, 0)
    got = torch.empty(ROWS, WIDTH)
    dist.scatter(got, [value * 2 for value in values[:world]] if rank == 1 % world else None, 1 % world)
    return [total, gathered, one, got, press(values), press(gathered)]


@program
def gather_tensors(rank: int, world: int) -> Any:
    values = activations(rank)
    whole = torch.empty(world * ROWS, WIDTH)
    dist.all_gather_into_tensor(whole, values[5])
    part = torch.empty(ROWS // world, WIDTH)
    dist.reduce_scatter_tensor(part, values[6])
    parts = torch.empty(ROWS // world, WIDTH)
    dist.reduce_scatter(parts, list(values[7].clone().chunk(world)))
    return [press(values), whole, part, parts, (whole * 2).sum()]


@program
def all_to_all(rank: int, world: int) -> Any:
    values = activations(rank)
    output = torch.empty(ROWS, WIDTH)
    dist.all_to_all_single(output, values[2] * 2)
    total = press(values)
    return [total, output, output.cos(), press([output, *values])]


@program
def send_and_receive(rank: int, world: int) -> Any:
    values = activations(rank)
    other = (rank + 1) % world
    results = []
    for i in range(4):
        got = torch.empty(ROWS, WIDTH)
        if rank % 2 == 0:
            dist.send(values[i] * 2, other)
            dist.recv(got, (rank - 1) % world)
        else:
            late(rank)
            dist.recv(got, (rank - 1) % world)
            dist.send(values[i] * 2, other)
        results.append(got)
    return [press(values), results, press(results)]


@program
def send_and_receive_asynchronous(rank: int, world: int) -> Any:
    values = activations(rank)
    other, before = (rank + 1) % world, (rank - 1) % world
    got = [torch.empty(ROWS, WIDTH) for _ in range(4)]
    works = [dist.irecv(buffer, before, tag=i) for i, buffer in enumerate(got)]
    late(rank)
    works += [dist.isend(value * 2, other, tag=i) for i, value in enumerate(values[:4])]
    total = press(values)
    for work in works:
        work.wait()
    together = [torch.empty(ROWS, WIDTH) for _ in range(2)]
    pairs = [dist.P2POp(dist.isend, values[7], other), dist.P2POp(dist.irecv, together[0], before)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    return [total, got, together[0], press(got)]


@program
def coalesced(rank: int, world: int) -> Any:
    values = activations(rank)
    buffers = [value * 2 for value in values[:2]]
    dist.all_reduce_coalesced(buffers)
    return [press(values), buffers, press(buffers)]


@program
def objects_and_barriers(rank: int, world: int) -> Any:
    values = activations(rank)
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, {"rank": rank, "mean": values[5].mean().item()})
    sent = [{"from": 0, "sum": float(values[0].sum())} if rank == 0 else None]
    dist.broadcast_object_list(sent, 0)
    dist.barrier()
    dist.monitored_barrier()
    return [press(values), str(everyone), str(sent)]


@program
def several_groups(rank: int, world: int) -> Any:
    values = activations(rank)
    alone = [dist.new_group([r]) for r in range(world)]
    again = dist.new_group(list(range(world)))
    buffers = [value * 2 for value in values[:3]]
    works = [
        dist.all_reduce(buffers[0], group=again, async_op=True),
        dist.all_reduce(buffers[1], group=alone[rank], async_op=True),
        dist.all_reduce(buffers[2], async_op=True),
    ]
    total = press(values)
    for work in works:
        work.wait()
    return [total, buffers, press(buffers)]


@program
def stress_with_late_partners(rank: int, world: int) -> Any:
    """Many messages and collectives at once, ranks that come late at random, and pressure
    between."""
    same, own = random.Random(5), random.Random(100 + rank)
    values = activations(rank)
    pending: list[tuple[Any, torch.Tensor]] = []
    found = []
    for round in range(40):
        if own.random() < 0.3:
            time.sleep(own.random() * 0.01)
        kind, index = same.randrange(5), same.randrange(len(values))
        outgoing = values[index] * (round + 1)
        if kind == 0:
            pending.append((dist.all_reduce(outgoing, async_op=True), outgoing))
        elif kind == 1:
            pending.append((dist.broadcast(outgoing, same.randrange(world), async_op=True), outgoing))
        elif kind == 2:
            parts = [torch.empty_like(outgoing) for _ in range(world)]
            pending.append((dist.all_gather(parts, outgoing, async_op=True), parts[-1]))
        else:
            got = torch.empty_like(outgoing)
            ring = [
                dist.P2POp(dist.isend, outgoing, (rank + 1) % world),
                dist.P2POp(dist.irecv, got, (rank - 1) % world),
            ]
            pending += zip(dist.batch_isend_irecv(ring), [torch.zeros(1), got], strict=True)
        del outgoing
        values[index] = torch.cos(values[index - 1] + values[index])
        if same.random() < 0.4:
            found.append(press(values[: same.randrange(2, len(values))]).sum())
        while len(pending) > same.randrange(1, 6):
            work, result = pending.pop(same.randrange(len(pending)))
            work.wait()
            found.append(result.sum())
    for work, result in pending:
        work.wait()
        found.append(result * 2)
    return [found, press(values)]


@program
def functional(rank: int, world: int) -> Any:
    import torch.distributed._functional_collectives as functions

    values = activations(rank)
    group = dist.group.WORLD
    summed = functions.all_reduce(values[3] * 2, "sum", group)
    gathered = functions.all_gather_tensor(values[4], 0, group)
    part = functions.reduce_scatter_tensor(values[5], "sum", 0, group)
    several = functions.all_reduce_coalesced([values[6], values[7]], "sum", group)
    total = press(values)
    results = [torch.as_tensor(x) + 0 for x in (summed, gathered, part, *several)]
    return [total, results, press([summed + 0, *values])]


@program
def functional_late(rank: int, world: int) -> Any:
    """Waited for long after the call, or never."""
    functions = torch.ops._c10d_functional
    name = dist.group.WORLD.group_name
    values = activations(rank)
    late(rank)
    pending = [functions.all_reduce(value, "sum", name) for value in values[:4]]
    total = press(values)
    waited = [functions.wait_tensor(value) for value in pending[:3]]
    result = [total, [value * 2 for value in waited], press(values)]
    functions.wait_tensor(pending[3])
    return result


@program
def differentiable(rank: int, world: int) -> Any:
    import torch.distributed.nn.functional as functions

    torch.manual_seed(rank)
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
    x = torch.randn(ROWS, WIDTH)
    for _ in range(4):
        x = torch.tanh(x @ weight)
        x = functions.all_reduce(x) / world
        x = torch.cat(functions.all_gather(x)).view(world, ROWS, WIDTH).sum(0).sin()
    x.sum().backward()
    return [x.detach(), weight.grad]


# --- data parallel ----------------------------------------------------------------------------------------------------


def ddp(rank: int, *, hook: Any = None, state: Any = None, bucket: float = 0.05, **options: Any) -> list[Any]:
    model = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=bucket, **options)
    if hook:
        model.register_comm_hook(state, hook)
    return train(model, rank)


@program
def ddp_plain(rank: int, world: int) -> Any:
    return ddp(rank)


@program
def ddp_bucket_view(rank: int, world: int) -> Any:
    return ddp(rank, gradient_as_bucket_view=True)


@program
def ddp_static_graph(rank: int, world: int) -> Any:
    return ddp(rank, static_graph=True)


@program
def ddp_unused(rank: int, world: int) -> Any:
    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = network(), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = nn.parallel.DistributedDataParallel(Some(), find_unused_parameters=True, bucket_cap_mb=0.05)
    return train(model, rank)


@program
def ddp_accumulating(rank: int, world: int) -> Any:
    model = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for first, second in zip(batches(rank, 3), batches(rank + 10, 3), strict=True):
        with model.no_sync():
            model(first).square().mean().backward()
        loss = model(second).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.detach())
    return [losses, [p.detach() for p in model.parameters()], [p.grad for p in model.parameters()]]


@program
def ddp_buffers(rank: int, world: int) -> Any:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.BatchNorm1d(64))
    return [train(nn.parallel.DistributedDataParallel(model), rank), list(model.buffers())]


@program
def ddp_hook_average(rank: int, world: int) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ddp(rank, hook=default_hooks.allreduce_hook)


@program
def ddp_hook_half(rank: int, world: int) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ddp(rank, hook=default_hooks.fp16_compress_hook)


@program
def ddp_hook_low_rank(rank: int, world: int) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    # One bucket: its hook waits on the backend's threads, of which gloo has two.
    return ddp(rank, hook=powerSGD_hook.powerSGD_hook, state=state, bucket=25)


@program
def zero_redundancy(rank: int, world: int) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    return train(model, rank, optimizer=optimizer)


# --- sharded ----------------------------------------------------------------------------------------------------------


def fsdp(rank: int, **options: Any) -> list[Any]:
    from torch.distributed.fsdp import fully_shard

    model = network()
    for part in model:
        fully_shard(part, **options)
    fully_shard(model, **options)
    losses, _ = train(model, rank)
    return [losses, [parameter.to_local() for parameter in model.parameters()]]


@program
def fsdp_resharding(rank: int, world: int) -> Any:
    return fsdp(rank)


@program
def fsdp_keeping(rank: int, world: int) -> Any:
    return fsdp(rank, reshard_after_forward=False)


@program
def fsdp_evaluating(rank: int, world: int) -> Any:
    """Gathered without a backward pass, with other bytes after a step, and twice before one."""
    from torch.distributed.fsdp import fully_shard

    model = network()
    for part in model:
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    found, kept = [], []
    for batch in batches(rank, 4):
        with torch.no_grad():
            kept.append(model(batch).sin().sum())
        loss = model(batch).square().mean() + model(batch * 0.5).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
        kept.append(model(batch).detach().sum())  # of a graph that is never run backwards
    return [found, kept, [parameter.to_local() for parameter in model.parameters()]]


@program
def fsdp_hybrid(rank: int, world: int) -> Any:
    """Sharded inside of pairs, replicated between them."""
    from torch.distributed.device_mesh import init_device_mesh

    inside = 2 if world % 2 == 0 else 1
    mesh = init_device_mesh("cpu", (world // inside, inside), mesh_dim_names=("replicate", "shard"))
    return fsdp(rank, mesh=mesh)


@program
def fsdp_checkpoint(rank: int, world: int) -> Any:
    """Saved and loaded by torch.distributed.checkpoint, at once and in the background."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    folders: list[Any] = [None, None]
    if rank == 0:
        folders = [tempfile.mkdtemp(), tempfile.mkdtemp()]
    dist.broadcast_object_list(folders, 0)
    background = dist.new_group(backend="gloo")  # its collectives run beside those of the training
    model = network(3)
    for part in model:
        fully_shard(part)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def steps() -> list[torch.Tensor]:
        losses = []
        for batch in batches(rank, 2):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    found = [steps()]
    parameters, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": parameters, "optimizer": moments}, checkpoint_id=folders[0])
    found.append(steps())
    parameters, moments = get_state_dict(model, optimizer)
    pending = checkpoint.async_save(
        {"model": parameters, "optimizer": moments}, checkpoint_id=folders[1], process_group=background
    )
    found.append(steps())  # while it is written
    pending.result()
    for folder in folders:
        parameters, moments = get_state_dict(model, optimizer)
        state = {"model": parameters, "optimizer": moments}
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        found.append(steps())
    dist.destroy_process_group(background)
    dist.barrier()
    if rank == 0:
        for folder in folders:
            shutil.rmtree(folder)
    return [found, [parameter.to_local() for parameter in model.parameters()]]


@program
def backend_called_directly(rank: int, world: int) -> Any:
    """Past the dispatcher: pointers that escape are noticed as anywhere."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    values = activations(rank)
    total = values[3] * 2
    late(rank)
    backend.allreduce([total]).wait()
    first = press(values)
    value = values[5] + 1
    backend.broadcast(value, 0).wait()
    if rank == 0:
        backend.send([values[7] * 3], 1, 0).wait()
    elif rank == 1:
        got = torch.empty(ROWS, WIDTH)
        backend.recv([got], 0, 0).wait()
        values.append(got)
    return [total, value, first, press(values)]


@program
def fsdp_mixed(rank: int, world: int) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fsdp(rank, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


@program
def tensor_parallel(rank: int, world: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = network()
    mesh = init_device_mesh("cpu", (world,))
    for part in list(model)[:-1]:
        parallelize_module(part, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    losses, parameters = train(model, 0)
    return [losses, [p.to_local() if hasattr(p, "to_local") else p for p in parameters]]


@program
def pipeline(rank: int, world: int) -> Any:
    return pipelined(rank, world, "ScheduleGPipe")


@program
def pipeline_interleaving(rank: int, world: int) -> Any:
    return pipelined(rank, world, "Schedule1F1B")


def pipelined(rank: int, world: int, name: str) -> Any:
    from torch.distributed import pipelining

    layers = list(network(2 * world))[:-1]
    mine = nn.Sequential(*layers[2 * rank : 2 * rank + 2])
    stage = pipelining.PipelineStage(mine, rank, world, torch.device("cpu"))
    schedule = getattr(pipelining, name)(stage, n_microbatches=4, loss_fn=lambda x, y: (x - y).square().mean())
    optimizer = torch.optim.Adam(mine.parameters(), lr=1e-3)
    losses: list[torch.Tensor] = []
    for batch in batches(0, 3):
        if rank == 0:
            schedule.step(batch)
        elif rank == world - 1:
            schedule.step(target=batch * 0.5, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    return [[loss.detach() for loss in losses], [p.detach() for p in mine.parameters()]]
