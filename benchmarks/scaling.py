"""How the engine's work grows with the number of resident storages, from 100 to 100,000, seen from
Python.

    allocation    an op without inputs makes a storage of 1 KiB; every second block of the arena is a hole of that size
    free          a storage of the stock is let go of, and its block with it
    recorded op   an add whose result is kept: allocation, lineage and the kernel itself
    search        an add in a full arena: the time in the search for room (from stats), for each search

Asked: a search grows no faster than linearly, everything else no faster than logarithmically. The
exponent is the slope of log(time) over log(number), over the whole range and between the two
largest numbers. Allowed is 1 for a search, and for the rest the exponent of the logarithm itself
over the same range (from 100 to 100,000: 0.13).
"""

import argparse
import gc
import math
import time
from collections.abc import Callable
from typing import Any

import environment  # isort: skip  # noqa: F401  before torch
import torch

from common import median, names, number, parser, progress, show, write
from processes import Failed, call

KINDS = ("allocation", "free", "recorded op", "search")
ASKED = {"allocation": "logarithmic", "free": "logarithmic", "recorded op": "logarithmic", "search": "linear"}
FLOATS = 256  # 1 KiB: more than what is too small to be evicted
BLOCK = 4 * FLOATS


def fill(count: int) -> list[torch.Tensor]:
    """Storages that the engine can recompute, each made by an add."""
    one = torch.ones(FLOATS)
    return [one + i for i in range(count)]


def per_call(work: Callable[[], Any], calls: int) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) / calls


def once(kind: str, count: int, policy: str, threads: int) -> dict[str, float]:
    """Seconds for one of a kind with this many storages resident. In a process of its own."""
    import coop

    torch.set_num_threads(threads)
    gc.disable()
    calls = 200 if kind == "search" else min(2000, max(count // 2, 100))
    room = 2 * count * BLOCK + (4 << 20)
    if kind == "search":
        room = (count + 4) * BLOCK + (64 << 10)
    with coop.budget(room, policy) as memory:
        if kind == "allocation":
            stock = fill(2 * count)
            del stock[::2]
            seconds = per_call(lambda: stock.extend([torch.empty(FLOATS) for _ in range(calls)]), calls)
        elif kind == "free":
            stock = fill(count + calls)
            order = torch.randperm(len(stock), generator=torch.Generator().manual_seed(0)).tolist()[:calls]

            def let_go() -> None:
                for i in order:
                    stock[i] = None

            seconds = per_call(let_go, calls)
        elif kind == "recorded op":
            stock = fill(count)
            seconds = per_call(lambda: stock.extend(fill(calls)), calls)
        else:
            one = torch.ones(FLOATS)
            stock = fill(count)
            while memory.stats().searches < 5:
                stock.append(one + 1)
            before = memory.stats()
            for _ in range(calls):
                stock.append(one + 1)
            after = memory.stats()
            searches = after.searches - before.searches
            seconds = (after.search_seconds - before.search_seconds) / max(searches, 1)
            return {"seconds": seconds, "searches": searches, "storages": after.storages}
        return {"seconds": seconds, "storages": memory.stats().storages}


def exponent(first: dict[str, Any], last: dict[str, Any]) -> float:
    return math.log(last["seconds"] / first["seconds"]) / math.log(last["count"] / first["count"])


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The exponents for each kind and policy."""
    found = []
    for kind, policy in dict.fromkeys((row["kind"], row["policy"]) for row in rows):
        line = [row for row in rows if (row["kind"], row["policy"]) == (kind, policy) and "seconds" in row]
        if len(line) < 2:
            continue
        whole, tail = exponent(line[0], line[-1]), exponent(line[-2], line[-1])
        first, last = line[0]["count"], line[-1]["count"]
        allowed = 1.0 if kind == "search" else math.log(math.log(last) / math.log(first)) / math.log(last / first)
        found.append(
            {"kind": kind, "policy": policy, "whole": whole, "tail": tail, "asked": ASKED[kind], "allowed": allowed}
        )
    return found


def main() -> None:
    made = parser(__doc__)
    made.add_argument(
        "--counts", type=lambda text: [int(n) for n in text.split(",")], default=[100, 1000, 10_000, 100_000]
    )
    made.add_argument("--policies", **names(("coop", "coop-paper", "dtr", "dtr-eq", "dte", "lru"), ("coop",)))
    made.add_argument("--rounds", type=int, default=5, help="of which the median counts (5)")
    settings = made.parse_args()

    rows = measure(settings)
    found = growth(rows)
    cells = {(row["kind"], row["policy"], row["count"]): row for row in rows}
    lines = []
    for growing in found:
        key = growing["kind"], growing["policy"]
        times = [cells[*key, count] for count in settings.counts]
        lines.append(
            [f"{key[0]} ({key[1]})", *(number(row["seconds"] * 1e6, 2) if "seconds" in row else row["error"][:20] for row in times),
             number(growing["whole"]), number(growing["tail"]), f"{growing['asked']}: {growing['allowed']:.2f}"]
        )  # fmt: skip
    columns = ["microseconds at", *(f"{count:,}" for count in settings.counts), "exponent", "at the end", "asked"]
    show("Cost by number of resident storages", columns, lines)
    write(settings.json, "scaling", settings, rows + [{"growth": growing} for growing in found])


def measure(settings: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    plan = [(policy, kind, count) for policy in settings.policies for kind in KINDS for count in settings.counts]
    with progress() as bar:
        task = bar.add_task("", total=len(plan))
        for policy, kind, count in plan:
            row: dict[str, Any] = {"kind": kind, "policy": policy, "count": count}
            bar.update(task, description=f"{policy}: {kind} at {count:,}", refresh=True)
            try:
                runs = [call(once, kind, count, policy, settings.threads, limit=120) for _ in range(settings.rounds)]
                row |= runs[0] | {"seconds": median(run["seconds"] for run in runs)}
            except Failed as failure:
                row["error"] = str(failure)
            rows.append(row)
            bar.advance(task)
    return rows


if __name__ == "__main__":
    main()
