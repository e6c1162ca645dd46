"""One rank: records a step, plans it and follows the plan, and writes down what came of it.

    torchrun --standalone --nproc-per-node 2 tests/ranks/recording.py OUT NAME...

Of each program OUT.<name>.<rank>.trace is the trace, and OUT.<rank>.json says what happened.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import nn

import coop
from ranks.compare import digest
from ranks.programs import batches, network

SHARE = 0.85
STEPS = 5
LATE = 0.05
"""Seconds that rank 1 comes late to each step. Rank 0 waits for it."""


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.05)


def fsdp(model: nn.Module, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for part in model.children():
        fully_shard(part, **options)
    return fully_shard(model, **options)


PROGRAMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": ddp,
    "fsdp_resharding": fsdp,
    "fsdp_keeping": lambda model: fsdp(model, reshard_after_forward=False),
}


def training(name: str, rank: int) -> tuple[Callable[[], None], Callable[[], Any]]:
    """A step, and what has come of all steps."""
    model = PROGRAMS[name](network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    (batch,) = batches(rank, 1)
    losses: list[torch.Tensor] = []

    def step() -> None:
        if rank == 1:
            time.sleep(LATE)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    def result() -> Any:
        locals = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
        return [losses, locals]

    return step, result


def run(name: str, out: str) -> dict[str, Any]:
    rank = dist.get_rank()

    def steps() -> str:
        torch.manual_seed(0)
        step, result = training(name, rank)
        for _ in range(STEPS):
            step()
        return digest(result())

    trace = coop.record(training(name, rank)[0], name=name)
    coop.trace.write(trace, f"{out}.{name}.{rank}.trace")
    plan = coop.plan.solve(trace, SHARE, time_limit=1)
    expected = steps()
    with coop.budget(plan.budget, plan=plan, checks=1) as memory:
        got = steps()
        stats = memory.stats()
    again = [number for number in plan.sequence() if plan.sequence().count(number) > 1]
    return {
        "program": name,
        "same": got == expected,
        "planned_steps": stats.planned_steps,
        "evictions": stats.evictions,
        "again": sorted({plan.program[number].name for number in again}),
        "peak": stats.peak,
    }


def main() -> None:
    out, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found: list[dict[str, Any]] = []
    for name in names:
        try:
            found.append(run(name, out))
        except Exception as error:
            found.append({"program": name, "error": "".join(traceback.format_exception(error))[-3000:]})
            break
        finally:
            Path(f"{out}.{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
