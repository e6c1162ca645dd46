"""Swapping beside recomputing: what a second way out of the arena costs, and what it makes
possible.

Live, interleaved in one run, on a 6-layer BERT with Adam at 16 x 128 (parameters, moments and
gradients outweigh its activations) and on ResNet-50, with budgets that are shares of eager's own
peak, everything counted:

    eager               plain PyTorch, what all ratios refer to
    coop+swap@RATIO     coop with memory outside the arena to swap to; delta+swap likewise
    coop@RATIO          coop alone, where it runs
    save_on_cpu         torch.autograd.graph.save_on_cpu: what autograd saves is copied, and the copies do not count
    save_on_disk        hooks that write it to files
    coop+swap@save_on_cpu, coop+disk@save_on_disk
                        coop in the memory that these need, to memory outside or to a file

A time is the median over rounds of (seconds for a step / eager's in the same round), of CPU and of
wall time. Bits: losses, gradients, parameters, moments and random state after all steps are
compared with eager's.

Simulated, on the a100 device model with a link of 12 GB/s each way: the largest batch of ResNet-50
and ResNet-101 in the memory that the paper's batch needs, and the lowest budget in which each of
the eight networks takes less than twice its time.
"""

import argparse
import dataclasses
import tempfile
from typing import Any

import torch
import transformers

from common import median, names, number, parser, progress, share, show, write
from job import Profile, Way
from processes import Failed, Outcome, Trainer, profile_of, take_turns
from workloads import MODELS, Task

RATIOS = (0.7, 0.5, 0.35)
WARM_UP = 3
LIVE = ("bert6", "resnet50")
PARTS = (*LIVE, "batches", "networks")  # the last two are simulated: swap_simulated.py


def bert6(small: bool) -> Task:
    """As large as a 6-layer BERT is: 768 wide, with a vocabulary of 30,522."""
    shape: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256} if small else {}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(num_hidden_layers=6, **shape))
    ids = torch.randint(0, 30000, (4, 32) if small else (16, 128))
    return Task(model, {"input_ids": ids, "labels": torch.randint(0, 2, (len(ids),))}, [])


MODELS["bert6"] = bert6


# --- live ----------------------------------------------------------------------------------------------------------------


class Contest:
    """All ways of training one model."""

    def __init__(self, model: str, settings: argparse.Namespace) -> None:
        self.base = Way(model, "adam", small=settings.scale == "small", threads=settings.threads)
        self.settings = settings
        self.eager: Profile = self.profile("eager")
        self.outside: Profile = self.profile("save_outside")

    def profile(self, name: str) -> Profile:
        return profile_of(dataclasses.replace(self.base, name=name))

    def coop(self, name: str, policy: str, budget: float, **switches: Any) -> Way:
        return dataclasses.replace(
            self.base, name=name, policy=policy, budget=int(budget), switches=tuple(switches.items())
        )

    def heats(self, folder: str) -> list[list[Way]]:
        """Ways that take turns with each other and with eager, as many as fit into the machine's
        memory at once."""
        peak, saved = self.eager.total, self.outside.total
        heats = [
            [
                self.base,
                self.coop(f"coop+swap@{ratio}", "coop", ratio * peak, swap="16GiB"),
                self.coop(f"delta+swap@{ratio}", "delta", ratio * peak, swap="16GiB"),
                self.coop(f"coop@{ratio}", "coop", ratio * peak),
            ]
            for ratio in self.settings.ratios
        ]
        plain = (dataclasses.replace(self.base, name=name) for name in ("save_on_cpu", "save_on_disk"))
        memory = self.coop("coop+swap@save_on_cpu", "coop", saved, swap="16GiB")
        return [
            *heats,
            [self.base, *plain, memory, self.coop("coop+disk@save_on_disk", "coop", saved, swap=("disk", folder))],
        ]

    def run(self) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            found = [row for heat in self.heats(folder) for row in self.heat(heat)]
        return [row for i, row in enumerate(found) if i == 0 or row["method"] != "eager"]

    def heat(self, ways: list[Way]) -> list[dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        trainers: dict[str, Trainer] = {}
        outcomes: dict[str, Outcome] = {}
        with progress() as bar:
            task = bar.add_task("", total=len(ways) * (1 + self.settings.rounds))

            def tick(name: str) -> None:
                bar.update(task, advance=1, description=f"{self.base.model}: {name}", refresh=True)

            for way in ways:
                tick(way.name)
                rows[way.name] = {"model": way.model, "method": way.name, "budget": way.budget, "error": ""}
                try:
                    trainers[way.name] = Trainer(way, WARM_UP, self.settings.limit)
                except Failed as failure:
                    rows[way.name]["error"] = failure.kind
            clocks, failed = take_turns(trainers, self.settings.rounds, 1, tick)
            for name, failure in failed.items():
                rows[name]["error"] = failure.kind
            for name, trainer in trainers.items():
                outcomes[name] = trainer.finish()
        for name, row in rows.items():
            row["peak"] = self.outside.total if name.startswith("save") else row["budget"] or self.eager.total
            row["ratio"] = row["peak"] / self.eager.total
            if name not in outcomes:
                continue
            for kind in ("cpu", "wall"):
                times = [getattr(c[name], kind) / getattr(c["eager"], kind) for c in clocks if name in c]
                row[kind] = median(times)
            row["bits"] = outcomes[name].digests == outcomes["eager"].digests
            if stats := outcomes[name].stats:
                row["peak"] = stats["peak"]
                row["stats"] = stats
                row["hidden"] = max(1.0 - stats["waited_seconds"] / (stats["transfer_seconds"] or 1.0), 0.0)
                row["recomputation"] = stats["recompute_seconds"] / stats["op_seconds"]
        return list(rows.values())


def live(model: str, settings: argparse.Namespace) -> list[dict[str, Any]]:
    rows = Contest(model, settings).run()
    show(
        f"{model}, Adam: times to eager's, memory to eager's peak",
        ["method", "memory", "CPU", "wall", "hidden", "recomputed", "bits"],
        [
            [
                row["method"],
                number(row["ratio"]),
                number(row.get("cpu")),
                number(row.get("wall")),
                share(row["hidden"]) if row.get("stats", {}).get("swaps_out") else "-",
                share(row.get("recomputation")),
                row["error"] or ("same" if row["bits"] else "differ"),
            ]
            for row in rows
        ],
    )
    return [{"part": "live", **row} for row in rows]


def main() -> None:
    made = parser(__doc__ or "")
    made.add_argument("--parts", **names(PARTS))
    made.add_argument("--ratios", type=lambda text: [float(r) for r in text.split(",")], default=list(RATIOS))
    made.add_argument("--rounds", type=int, default=4)
    made.add_argument("--scale", choices=["small", "full"], default="full")
    made.add_argument("--limit", type=float, default=300.0, help="seconds for a turn (300)")
    settings = made.parse_args()
    rows: list[dict[str, Any]] = []
    for part in settings.parts:
        if part in LIVE:
            rows += live(part, settings)
        else:
            import swap_simulated  # not before: the processes of plain PyTorch must not have coop in them

            rows += swap_simulated.PARTS[part]()
        write(settings.json, "swap", settings, rows)


if __name__ == "__main__":
    main()
