"""What coop.agree does, case by case. Each rank writes what it met to OUT.<rank>.json."""

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import coop

dist.init_process_group("gloo")
rank = dist.get_rank()
found: dict[str, Any] = {}


def too_large() -> None:
    torch.ones(100_000_000)


def met(name: str, block: Any) -> None:
    """How the block ends on this rank."""
    try:
        block()
        found[name] = "fine"
    except coop.OutOfBudget as error:
        numbers = {key: getattr(error, key) for key in ("op", "needed", "budget", "enough", "whole", "program", "rank")}
        found[name] = {"kind": "OutOfBudget", "text": str(error), **numbers}
    except Exception as error:
        found[name] = {"kind": type(error).__name__, "text": str(error), "from": repr(error.__cause__)}


def sum_is_right(name: str) -> None:
    value = torch.full((1000,), float(rank + 1))
    dist.all_reduce(value)
    found[name] = bool((value == 3).all())


@coop.agree()
def decorated(fails: bool) -> None:
    if fails:
        too_large()


def one_rank_runs_out() -> None:
    with coop.agree():
        if rank == 1:
            too_large()


def another_error_on_one_rank() -> None:
    with coop.agree():
        if rank == 1:
            raise ValueError("no such word")


def both_in_different_ways() -> None:
    with coop.agree():
        if rank == 0:
            too_large()
        raise KeyError("gone")


def handled_inside() -> None:
    with coop.agree():
        if rank == 1:
            try:
                too_large()
            except coop.OutOfBudget:
                torch.ones(1000)


def collectives_inside() -> None:
    with coop.agree(patience=5):
        dist.all_reduce(torch.ones(10))
        if rank == 1 and "collectives_inside" in found:
            too_large()
        dist.all_reduce(torch.ones(10))


def plain_out_of_memory() -> None:
    with coop.agree():
        if rank == 0:
            raise torch.OutOfMemoryError("a device is full")


met("plain, fine", lambda: coop.agree().__enter__().__exit__(None, None, None))
met("plain", plain_out_of_memory)
alone = [dist.new_group([r]) for r in range(2)]
with coop.budget("64MiB") as memory:
    kept = torch.ones(12_000_000)  # so that little is left
    met("alike, without agreeing", too_large)
    sum_is_right("sum after all ran out alike")
    met("one_rank_runs_out", one_rank_runs_out)
    sum_is_right("sum after one_rank_runs_out")
    for attempt in range(3):
        met(f"decorated {attempt}", functools.partial(decorated, attempt == 1 and rank == 0))
    sum_is_right("sum after decorated")
    met("another_error_on_one_rank", another_error_on_one_rank)
    met("both_in_different_ways", both_in_different_ways)
    met("handled_inside", handled_inside)
    sum_is_right("sum after handled_inside")
    with coop.agree(alone[rank]):
        pass
    evicted = memory.stats().evictions
    if "--collectives" in sys.argv:
        met("collectives_inside", collectives_inside)
        begin = time.monotonic()
        try:
            collectives_inside()
        except coop.OutOfBudget as error:
            found["gave up"] = [time.monotonic() - begin, error.__notes__[0]]
            met("then a collective", lambda: dist.all_reduce(torch.ones(10)))
            met("then agreeing", one_rank_runs_out)
        except RuntimeError:
            found["gave up"] = "waited"
Path(f"{sys.argv[1]}.{rank}.json").write_text(json.dumps(found))
if "--collectives" not in sys.argv:
    dist.destroy_process_group()
    with coop.agree():
        pass
