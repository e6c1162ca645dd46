"""One rank: runs programs plainly and inside of budgets, and writes down what came of it.

    torchrun --standalone --nproc-per-node 2 tests/ranks/compare.py OUT NAME...

For each program and each share of its peak, OUT.<rank>.json says whether the bits were the same,
how much was evicted, and what failed.
"""

import hashlib
import json
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist

import coop
from ranks.programs import PROGRAMS

LEAVE_EARLY = "leave_early"
SHARES = (0.8, 0.6, 0.45)
ABOVE_FLOOR, ABOVE_FLOOR_SINGLE, BELOW_PEAK = 1.25, 1.45, 0.97
"""A smaller budget is raised to so many times the floor, but stays below the peak. The floor varies
with what is under way. A policy that evicts one storage at a time leaves holes around it."""


def digest(result: Any) -> str:
    state = hashlib.sha256()

    def add(thing: Any) -> None:
        if isinstance(thing, torch.Tensor):
            state.update(f"{thing.dtype}{tuple(thing.shape)}".encode())
            bits = thing.detach().reshape(-1).view(torch.uint8).clone() if thing.numel() else torch.empty(0)
            state.update(bits.numpy().tobytes())
        elif isinstance(thing, list | tuple):
            for item in thing:
                add(item)
        else:
            state.update(repr(thing).encode())

    add(result)
    add(torch.get_rng_state())
    return state.hexdigest()


def run(name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    expected = digest(PROGRAMS[name](rank, world))
    torch.manual_seed(0)
    with coop.measure() as memory:
        measured = digest(PROGRAMS[name](rank, world))
    peak, floor = memory.stats().peak, memory.stats().floor
    above = ABOVE_FLOOR if options.get("policy", "coop") == "coop" else ABOVE_FLOOR_SINGLE
    found = [{"program": name, "share": 1.0, "same": measured == expected, "evictions": 0, "floor": floor}]
    for share in SHARES:
        budget = max(int(share * peak), min(int(above * floor), int(BELOW_PEAK * peak)))
        torch.manual_seed(0)
        with coop.budget(budget, **options) as memory:
            result = PROGRAMS[name](rank, world)
            got = digest(result)
            del result
        stats = memory.stats()
        found.append(
            {
                "program": name,
                "share": share,
                "same": got == expected,
                "evictions": stats.evictions + stats.swaps_out,
                "reached": budget / peak,
            }
        )
        dist.barrier()
    return found


def leave_early() -> list[dict[str, Any]]:
    """Rank 0 leaves its scope while bytes are on their way to it, and from it."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    if rank == 0:
        with coop.budget("1MiB") as memory:
            got, sent = torch.empty(10_000), torch.full((10_000,), 3.0)
            works = [dist.irecv(got, 1), dist.isend(sent, 1)]
            for _ in range(20):
                torch.randn(40_000).sum()
            assert memory.stats().evictions == 0
        for work in works:
            work.wait()
        same = bool((got == 5).all()) and bool((sent == 3).all())
    elif rank == 1:
        time.sleep(0.3)
        got = torch.empty(10_000)
        dist.recv(got, 0)
        dist.send(torch.full((10_000,), 5.0), 0)
        same = bool((got == 3).all())
    else:
        same = True
    return [{"program": LEAVE_EARLY, "share": 1.0, "same": same, "evictions": 0}]


def main() -> None:
    out, *names = sys.argv[1:]
    options = json.loads(os.environ.get("COOP_TEST_OPTIONS", '{"checks": 1}'))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    found: list[dict[str, Any]] = []
    for name in names:
        try:
            found += leave_early() if name == LEAVE_EARLY else run(name, options)
        except Exception as error:
            found.append({"program": name, "error": "".join(traceback.format_exception(error))[-3000:]})
            break
        finally:
            Path(f"{out}.{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
