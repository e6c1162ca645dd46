"""One rank of benchmarks/distributed.py: trains in each way in turn, and writes its times.

    torchrun --nproc-per-node 2 benchmarks/distributed_rank.py OUT ROUNDS STEPS

Alone (without torchrun) it measures the same model in one process, without DDP.
"""

import environment  # isort: skip  # noqa: F401  before torch

import hashlib
import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import coop

WIDTH, LAYERS, BATCH, LENGTH, WARM = 256, 6, 16, 128, 2
HALF = 0.5
"""Of the activations."""


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def train(steps: int, rank: int, ranks: int) -> tuple[float, float, str, int]:
    """Processor and wall time of a step, a digest of the parameters, and the bytes between
    steps."""
    torch.manual_seed(0)
    model = encoder()
    whole = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    torch.manual_seed(rank)
    cpu = wall = 0.0
    for step in range(WARM + steps):
        if step == WARM:
            if ranks > 1:
                dist.barrier()
            cpu, wall = time.process_time(), time.perf_counter()
        whole(torch.randn(BATCH, LENGTH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    cpu, wall = (time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps
    held = coop._C.stats()["in_use"] if coop._C.is_open() else 0
    state = hashlib.sha256()
    for parameter in model.parameters():
        state.update(parameter.detach().clone().numpy().tobytes())
    return cpu, wall, state.hexdigest(), held


def main() -> None:
    out, rounds, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    with coop.measure() as memory:
        held = train(1, rank, ranks)[3]
    peak = memory.stats().peak
    ways: dict[str, Any] = {
        "plain": nullcontext,
        "large": lambda: coop.budget(2 * peak),
        "half": lambda: coop.budget(int(held + HALF * (peak - held))),
    }
    found: list[dict[str, Any]] = []
    for turn in range(rounds):
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            with ways[name]() as memory:
                cpu, wall, digest, _ = train(steps, rank, ranks)
            stats = memory.stats() if memory is not None else None
            found.append(
                {
                    "round": turn, "way": name, "cpu": cpu, "wall": wall, "digest": digest,
                    "evictions": stats.evictions if stats else 0,
                    "recomputation": stats.recompute_seconds / stats.op_seconds if stats else 0.0,
                }
            )  # fmt: skip
    text = json.dumps({"peak": peak, "held": held, "rows": found})
    out.with_name(f"{out.name}.{rank}.json").write_text(text)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
