"""Finds the largest batch that fits the budget of every rank, and trains with it.

    torchrun --nproc-per-node 2 examples/batch_size.py --budget 24MiB

Ranks differ in what they need: here the second one has longer sequences. All of them have to go
down to the same batch size. A trial runs forward and backward without exchanging gradients, so a
rank that runs out does not leave the others waiting, and `coop.agree` tells them.
"""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import coop

WIDTH = 128


def batch(rows: int, step: int) -> torch.Tensor:
    rank = dist.get_rank()
    length = 8 + 8 * rank
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


@coop.agree()
def trial(model: DistributedDataParallel, rows: int) -> None:
    """Raises OutOfBudget on all ranks if one of them runs out."""
    with model.no_sync():
        model(batch(rows, 0)).square().mean().backward()


def largest_batch(model: DistributedDataParallel, largest: int) -> int:
    rows = largest
    while True:
        try:
            trial(model, rows)
            return rows
        except coop.OutOfBudget as error:
            if dist.get_rank() == 0:
                print(f"{rows} rows: rank {error.rank} needs a budget of about {error.program:,} bytes", flush=True)
            if rows == 1:
                raise
        finally:
            model.zero_grad()  # a trial that failed has left some
        rows //= 2


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--budget", default="24MiB")
    arguments.add_argument("--largest", type=int, default=1024)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    find_and_train(options.budget, options.largest)
    gc.collect()  # the model holds on to the process group
    dist.destroy_process_group()


def find_and_train(budget: str, largest: int) -> None:
    with coop.budget(budget):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)]
        model = DistributedDataParallel(nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = largest_batch(model, largest)
        print(f"rank {dist.get_rank()} trains with {rows} rows", flush=True)
        for step in range(1, 4):
            loss = model(batch(rows, step)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
