"""Rank 1 fails while its process group has something under way that rank 0 never answers."""

import sys

import torch
import torch.distributed as dist

import coop

dist.init_process_group("gloo")
works = []
if dist.get_rank() == 1:
    works.append(dist.all_reduce(torch.ones(1000), async_op=True))
    if "--own" in sys.argv:
        with coop.budget("1MiB"):
            torch.ones(1 << 30)
    torch.ones(1 << 30)
dist.recv(torch.empty(1000), 1 - dist.get_rank())
