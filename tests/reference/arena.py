"""The reference's arena: a list of blocks in address order, and the classes of cheap and expensive
results.

Part of the specification in play.py. Everything is found by looking at all blocks from the lowest
to the highest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference.lineage import Storage

LOW, HIGH, PACKED = "low", "high", "packed"
FREE, RAW, USED = "free", "raw", "used"


@dataclass(eq=False, slots=True)
class Block:
    offset: int
    bytes: int
    state: str = FREE
    storage: "Storage | None" = None


class Arena:
    """A byte range of fixed size, tiled by blocks. No two free blocks touch."""

    def __init__(self, budget: int, alignment: int, best_fit: bool) -> None:
        self.capacity = budget // alignment * alignment
        self.alignment = alignment
        self.best_fit = best_fit
        self.blocks = [Block(0, self.capacity)]
        # For each side, the block where the last room was found. See `_remove`.
        self.mark: dict[str, Block | None] = {LOW: None, HIGH: None}

    def round(self, size: int) -> int:
        """At least one unit: even an empty storage has an address."""
        return -(-max(size, 1) // self.alignment) * self.alignment

    @property
    def free_bytes(self) -> int:
        return sum(block.bytes for block in self.blocks if block.state == FREE)

    @property
    def largest_free(self) -> int:
        return max((block.bytes for block in self.blocks if block.state == FREE), default=0)

    def storages(self) -> "Iterator[Storage]":
        """All that are resident, the lowest first."""
        return (block.storage for block in list(self.blocks) if block.storage)

    def below(self, block: Block) -> Block | None:
        at = self.blocks.index(block)
        return self.blocks[at - 1] if at else None

    def above(self, block: Block) -> Block | None:
        at = self.blocks.index(block)
        return self.blocks[at + 1] if at + 1 < len(self.blocks) else None

    def allocate(self, size: int, side: str) -> Block | None:
        """A raw block at the side's edge of a hole that fits. With best fit, the hole is the
        smallest (on a tie, the lowest); else the nearest to the side's end of the arena. Packed
        requests take the lowest hole, whatever the placement. None: no hole fits."""
        size = self.round(size)
        holes = [block for block in self.blocks if block.state == FREE and block.bytes >= size]
        if not holes:
            return None
        if self.best_fit and side != PACKED:
            hole = min(holes, key=lambda block: (block.bytes, block.offset))
        else:
            hole = holes[-1] if side == HIGH else holes[0]
        return self.take(hole, size, side)

    def take(self, hole: Block, size: int, side: str) -> Block:
        """Cuts a raw block from this hole. A mark on the hole stays on the lower of the two
        parts."""
        size = self.round(size)
        at = self.blocks.index(hole)
        block = hole
        if hole.bytes > size:
            if side != HIGH:
                self.blocks.insert(at + 1, Block(hole.offset + size, hole.bytes - size))
                hole.bytes = size
            else:
                hole.bytes -= size
                block = Block(hole.offset + hole.bytes, size)
                self.blocks.insert(at + 1, block)
        block.state = RAW
        return block

    def release(self, block: Block) -> Block:
        """Frees a block, joins it with free neighbours, and returns the hole: the lowest of those
        joined."""
        block.state, block.storage = FREE, None
        below = self.below(block)
        if below and below.state == FREE:
            below.bytes += block.bytes
            self._remove(block)
            block = below
        self._join_above(block)
        return block

    def slide_down(self, block: Block) -> Block:
        """Swaps a block with the hole just below it, and returns the hole."""
        hole = self.below(block)
        assert hole and hole.state == FREE
        self._remove(hole)
        block.offset = hole.offset
        hole.offset = block.offset + block.bytes
        self.blocks.insert(self.blocks.index(block) + 1, hole)
        self._join_above(hole)
        return hole

    def _join_above(self, hole: Block) -> None:
        above = self.above(hole)
        if above and above.state == FREE:
            hole.bytes += above.bytes
            self._remove(above)

    def _remove(self, block: Block) -> None:
        """If the block has a mark, the mark moves outwards: on the low side to the block below, on
        the high side to the block above. If there is none, it moves inwards."""
        below, above = self.below(block), self.above(block)
        if self.mark[LOW] is block:
            self.mark[LOW] = below or above
        if self.mark[HIGH] is block:
            self.mark[HIGH] = above or below
        self.blocks.remove(block)


class DensityClasses:
    """Cheap results go to the high side, expensive ones to the low side. The density (seconds per
    byte) separates them.

    The densities of recorded ops are counted in half octaves from 1e-13 s/B up, weighted by bytes.
    After 32 records, and at each 1024th, Otsu's threshold is found: the cut that puts the most
    variance between the two classes. Then the counts decay to three quarters. Before that, and
    without a cost, everything counts as expensive.
    """

    BINS, FIRST, PERIOD, FADE = 96, 32, 1024, 0.75

    def __init__(self) -> None:
        self.bins = [0.0] * self.BINS
        self.count = 0
        self.threshold = -1

    def bin(self, density: float) -> int:
        return min(max(int(2 * math.log2(density / 1e-13)), 0), self.BINS - 1)

    def side(self, density: float) -> str:
        known = density > 0 and self.threshold >= 0
        return HIGH if known and self.bin(density) <= self.threshold else LOW

    def add(self, density: float, size: int) -> None:
        if density <= 0 or size == 0:
            return
        self.bins[self.bin(density)] += size
        self.count += 1
        if self.count == self.FIRST or self.count % self.PERIOD == 0:
            self._update()

    def _update(self) -> None:
        def weight_and_moment(bins: list[float]) -> tuple[float, float]:
            weight = moment = 0.0
            for at, count in enumerate(bins):
                weight += count
                moment += at * count
            return weight, moment

        total, moment = weight_and_moment(self.bins)
        best = -1.0
        for cut in range(self.BINS - 1):
            weight, below = weight_and_moment(self.bins[: cut + 1])
            if not 0 < weight < total:
                continue
            gap = below / weight - (moment - below) / (total - weight)
            if (spread := weight * (total - weight) * gap * gap) > best:
                best, self.threshold = spread, cut
        self.bins = [count * self.FADE for count in self.bins]
