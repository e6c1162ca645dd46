"""Rank 1 runs out of budget, catches it, and goes on to the next step. Rank 0 does not run out."""

import time

import torch
import torch.distributed as dist

import coop

dist.init_process_group("gloo")
rank = dist.get_rank()
with coop.budget("4MiB"):
    for step in range(1, 4):
        try:
            torch.ones(100_000_000 if rank == 1 and step == 2 else 1000)
        except coop.OutOfBudget:
            print("caught", flush=True)
            continue
        gradient = torch.full((1000,), float(step))
        begin = time.monotonic()
        dist.all_reduce(gradient)
        print(f"rank {rank}, step {step}: {gradient[0].item()}", flush=True)
