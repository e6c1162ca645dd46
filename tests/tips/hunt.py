"""Many cases: `python tests/tips/hunt.py [count] [first]`.

Prints what went wrong and a table; ends with 1 if a tip was not true.
"""

import sys
import warnings

import torch
from cases import Verdict, case


def row(name: str, some: list[Verdict]) -> str:
    once = sum(len(v.failures) == 1 and v.last > 0 for v in some) / len(some)
    few = sum(len(v.failures) <= 3 and v.last > 0 for v in some) / len(some)
    tips, broken = sum(len(v.failures) for v in some), sum(len(v.broken) for v in some)
    size = sorted(v.last / v.peak for v in some)[len(some) // 2]
    return f"{name:14}{len(some):7}{tips:7}{broken:10}{once:13.0%}{few:13.0%}{size:17.2f}"


def main(count: int, first: int) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    groups: dict[str, list[Verdict]] = {}
    for seed in range(first, first + count):
        verdict = case(seed)
        if verdict is None:
            continue
        swap = "with swap" if "swap" in verdict.name else "without swap"
        for group in (verdict.name.split(",")[0], swap, "all"):
            groups.setdefault(group, []).append(verdict)
        if verdict.broken or not verdict.last:
            print(verdict.explain(), flush=True)
    print("                cases   tips  not true   whole at once   in three   budget/peak")
    for name in sorted(groups, key=lambda name: (name == "all", "swap" in name, name)):
        print(row(name, groups[name]))
    return any(verdict.broken for verdict in groups["all"])


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    sys.exit(main(*(arguments + [500, 0][len(arguments) :])))
