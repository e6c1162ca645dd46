"""Trains with DDP on all ranks and prints a digest of the parameters.

What is asked for on the command line happens on rank 1, in the second step: --kill, --wait (and
rank 0 waits for it), --fail-once (in the first attempt of the launcher).
"""

import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS, ROWS, WIDTH = 3, 2048, 128


def trouble(rank: int) -> None:
    if rank != 1:
        return
    if "--kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    if "--wait" in sys.argv:
        print("waiting", flush=True)
        time.sleep(60)
    if "--fail-once" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        torch.empty(1 << 40)


def join() -> None:
    """With a store for each attempt of the launcher: gloo finds the addresses of the attempt before
    in torchrun's own."""
    if "--fail-once" not in sys.argv:
        dist.init_process_group("gloo")
        return
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], dist.TCPStore(host, port, is_master=False))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def main() -> None:
    torch.set_num_threads(1)
    join()
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(12)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        if step == 1:
            trouble(rank)
        batch = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    swapped = [name for fd in os.listdir("/proc/self/fd") if "coop-pages" in (name := link(fd))]
    files = [os.path.basename(name.split(" ")[0]) for name in swapped]
    sys.stdout.write(" ".join(["rank", str(rank), hashlib.sha256(bits).hexdigest(), *files]) + "\n")  # in one piece


def link(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


main()
