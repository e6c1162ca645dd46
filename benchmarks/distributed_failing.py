"""A rank that runs out of budget in its third step, beside one that does not: for
benchmarks/distributed.py.

    torchrun --nproc-per-node 2 -m coop run --budget 64MiB benchmarks/distributed_failing.py FILE

Writes to FILE when it happened.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import coop

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(512, 512))
for step in range(1000):
    rows = 200_000 if rank == 1 and step == 2 else 64
    try:
        loss = model(torch.randn(rows, 512)).square().mean()
    except coop.OutOfBudget:
        Path(sys.argv[1]).write_text(str(time.time()))
        raise
    loss.backward()
    time.sleep(0.05)
