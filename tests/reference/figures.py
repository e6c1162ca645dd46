"""The reference's figures: counts, and values that are computed by their definition.

Part of the specification in play.py.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coop.events import Stats
from reference.arena import RAW

if TYPE_CHECKING:
    from reference.engine import Engine


@dataclass
class Counts:
    allocations: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    rematerialisations: int = 0
    replays: int = 0
    moves: int = 0
    moved_bytes: int = 0
    commits: int = 0
    searches: int = 0
    ops: int = 0
    recorded_ops: int = 0
    peak: int = 0
    floor: int = 0
    op_seconds: float = 0.0
    recompute_seconds: float = 0.0
    swaps_out: int = 0
    swaps_in: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    transfer_seconds: float = 0.0
    waited_seconds: float = 0.0
    prefetch_hits: int = 0
    prefetch_misses: int = 0


def cached(engine: "Engine") -> int:
    """Bytes of storages that can be recomputed and that nobody holds."""
    return sum(b.bytes for b in engine.arena.blocks if b.storage and b.storage.producer and not b.storage.held)


def sources(engine: "Engine") -> int:
    return sum(storage.bytes for storage in engine.arena.storages() if not storage.producer)


def in_use(engine: "Engine") -> int:
    return engine.arena.capacity - engine.arena.free_bytes - cached(engine)


def note_use(engine: "Engine") -> None:
    """The floor: what the running op reads and makes, and the sources if they cannot be swapped.
    Transfers do not count, nor does an old version that is only copied."""
    counts, swap = engine.counts, engine.options.swap
    stuck = 0 if swap else sources(engine)
    locked = [storage for storage in engine.arena.storages() if storage.locks and storage is not engine.copying]
    operands = sum(storage.bytes for storage in locked if storage.producer or swap)
    raw = sum(block.bytes for block in engine.arena.blocks if block.state == RAW) - engine.swap.carried()
    counts.peak = max(counts.peak, in_use(engine))
    counts.floor = max(counts.floor, stuck + operands + raw)


def stats_of(engine: "Engine") -> Stats:
    """Without the counts of cached costs and times on the wall clock."""
    counts, shares = engine.counts, engine.free_shares
    total = 0.0
    for share in shares:
        total += share
    return Stats(
        **dataclasses.asdict(counts),
        budget=engine.options.budget,
        in_use=in_use(engine),
        cached=cached(engine),
        free=engine.arena.free_bytes,
        largest_free=engine.arena.largest_free,
        sources=sources(engine),
        storages=len(engine.lineage.storages),
        records=len(engine.lineage.records()),
        looks=0,
        exact_costs=0,
        union_find_costs=0,
        search_seconds=0.0,
        move_seconds=engine.move_seconds,
        fragmentation=total / len(shares) if shares else 0.0,
        hidden_seconds=max(counts.transfer_seconds - counts.waited_seconds, 0.0),
    )
