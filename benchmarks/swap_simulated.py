"""The simulated parts of swap.py, whose header says what they measure."""

import dataclasses
import functools
from typing import Any

from common import console, number, show
from coop import models
from coop.models.borrowed import _resnet, resnet50
from coop.models.network import Network
from coop.simulate import Player
from coop.trace.device import load
from coop.trace.shapes import shape_trace

TIER = {"swap": True}


def _runs(player: Player, budget: int, policy: str, **switches: Any) -> float | None:
    """The overhead of steps that are known, if it is below twice the time."""
    first, all_ = (player.play(budget, policy, steps=steps, limit=4.0, **switches) for steps in (2, 5))
    if all_.status != "ok" or first.status != "ok":
        return None
    before, after = first.stats, all_.stats
    ops = after.op_seconds - before.op_seconds
    overhead = ((all_.overhead or 0) * after.op_seconds - (first.overhead or 0) * before.op_seconds) / ops
    return overhead if overhead < 2.0 else None


def resnet101() -> Network:
    plain = resnet50(False)
    return dataclasses.replace(plain, name="resnet101", build=_resnet({"depths": [3, 4, 23, 3]}, 1000))


def batches() -> list[dict[str, Any]]:
    rows = []
    device = load("a100")
    for network, asked in ((resnet50(False), 2.04), (resnet101(), 2.25)):
        with console.status(f"tracing {network.name}"):
            traced = functools.cache(lambda batch, of=network: Player(shape_trace(of, batch, device)))
            base = 64
            budget = traced(base).peak
        for policy in ("delta", "coop"):
            most: tuple[float, float] = (1.0, 1.0)
            for times in (1.5, 2.0, asked, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0):
                with console.status(f"{network.name}: {policy}, {times:.2f} times the batch"):
                    overhead = _runs(traced(int(times * base)), budget, policy, **TIER)
                if overhead is None:
                    break
                most = (times, overhead)
            rows.append({"part": "batches", "network": network.name, "policy": policy, "batch": base, "budget": budget,
                         "times": most[0], "overhead": most[1], "asked": asked})  # fmt: skip
    show(
        "the largest batch in the memory of a batch of 64",
        ["network", "policy", "times", "at a time of", "asked"],
        [[r["network"], r["policy"], number(r["times"]), number(r["overhead"]), number(r["asked"])] for r in rows],
    )
    return rows


def networks() -> list[dict[str, Any]]:
    rows = []
    device = load("a100")
    for name in models.NAMES:
        with console.status(f"tracing {name}"):
            player = Player(shape_trace(models.get(name), None, device))
        for policy, switches in (("coop", {}), ("delta", TIER), ("coop", TIER)):
            lowest: tuple[float, float | None] = (1.0, None)
            for percent in range(90, 5, -10):
                with console.status(f"{name}: {policy} at {percent} %"):
                    overhead = _runs(player, int(player.peak * percent / 100), policy, **switches)
                if overhead is None:
                    break
                lowest = (percent / 100, overhead)
            rows.append({"part": "networks", "network": name, "policy": policy + ("+swap" if switches else ""),
                         "lowest": lowest[0], "saved": 1 - lowest[0], "overhead": lowest[1]})  # fmt: skip
            console.print(f"{name}: {rows[-1]['policy']} saves {rows[-1]['saved']:.0%}")
    return rows


PARTS = {"batches": batches, "networks": networks}
