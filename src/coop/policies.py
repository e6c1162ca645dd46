"""The policies by name: which switches of the engine each one sets.

coop        window over neighbours, cost per byte, two-ended placement by measured density, exact
            projected cost of what somebody needs, storages that nobody holds are kept until their
            room is needed, recomputable in-place ops, moving; gradients inside a backward pass
            are not recomputed
coop-paper  as published: sum of scores, best fit with a side inside the hole, union-find cost,
            eager eviction
dtr         lowest (projected cost / size / staleness), exact neighbourhood; copy on write, best
            fit, eager eviction
dtr-eq      the same with union-find components
dte         DTR; the size includes the free neighbours
delta       the largest and stalest first, by the cheaper of recomputing and swapping; without a
            tier to swap to it only recomputes
lru         least recently used

All but the first are as published, so they also evict and recompute gradients. Compaction as a
last resort (`rescue`) is on for all: without it, none of the published policies works in one arena
that also holds sources.
"""

from typing import Any

from coop._C import CostModel, Options, Placement
from coop.surface import OPTIONS

# What none of the published systems has.
_PUBLISHED: dict[str, Any] = {
    "placement": Placement.best_fit,
    "keep_dead": False,
    "needed_only": False,
    "record_backward": True,
    "move": False,
}
_SINGLE: dict[str, Any] = _PUBLISHED | {"partition": False, "in_place": False}

POLICIES: dict[str, dict[str, Any]] = {
    "coop": {"policy": "coop"},
    "coop-paper": _PUBLISHED | {"policy": "coop", "cost": CostModel.union_find, "per_byte": False},
    "dtr": _SINGLE | {"policy": "dtr"},
    "dtr-eq": _SINGLE | {"policy": "dtr", "cost": CostModel.union_find},
    "dte": _SINGLE | {"policy": "dte"},
    "delta": _SINGLE | {"policy": "delta", "needed_only": True},
    "lru": _SINGLE | {"policy": "lru", "cost": CostModel.own},
}

SWITCHES = frozenset(OPTIONS) - {"budget", "policy", "checks", "evict"}
"""The options that a caller may set beside a policy."""


def options_for(policy: str, budget: int, checks: int, switches: dict[str, Any]) -> Options:
    """The engine's options: the policy's settings, then the caller's switches."""
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; the known ones are {', '.join(POLICIES)}")
    unknown = set(switches) - SWITCHES
    if unknown:
        raise TypeError(f"unknown switch {sorted(unknown)[0]!r}; the known ones are {', '.join(sorted(SWITCHES))}")
    alignment = switches.get("alignment", 64)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment must be a power of two, not {alignment!r}")
    if checks not in (0, 1, 2, 3):
        raise ValueError(f"checks is 0, 1, 2 or 3, not {checks!r}")
    options = Options()
    options.budget = budget
    options.checks = checks
    for name, value in {**POLICIES[policy], **switches}.items():
        setattr(options, name, value)
    return options
