"""The reference's policies: which neighbouring blocks leave for a request?

Part of the specification in play.py. A policy answers with a run of blocks, lowest first; the engine evicts what is
evictable in it and slides the rest to its low edge. Coop's run is large enough at once. DTR, DTE, DELTA and LRU name one storage
at a time, and are asked again until the hole is large enough.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

from coop._C import Options
from reference.arena import FREE, LOW, Arena, Block
from reference.lineage import Lineage, Storage

SHORTEST = 1e-9
"""Seconds. Keeps scores finite."""
CLEARLY = 4
"""Times the price of its bytes."""
FAR = 64
"""Blocks that the search for spare storages looks at."""

Run = list[Block]


@dataclass(frozen=True)
class Terms:
    """What the last search of windows has paid."""

    staleness: float = 0.0
    """Mean over what left."""
    price: float = inf
    """Of a byte."""


@dataclass
class Scene:
    """What a policy may look at."""

    options: Options
    arena: Arena
    lineage: Lineage
    side: str
    now: float
    terms: Terms
    """By which moves are priced."""
    found: Terms
    """For the next search."""
    yielding: bool = True
    """What waiting ops will read may leave instead of a source that has to be written first."""
    wanted_too: bool = False
    """What waiting ops will read may leave as well."""
    unwritten_too: bool = True
    """Sources may leave whose bytes have to be written first."""

    def may_leave(self, storage: Storage) -> bool:
        written = storage.producer is not None or storage.page
        return storage.evictable(self.wanted_too) and (self.unwritten_too or written)


def staleness(scene: Scene, storage: Storage) -> float:
    return max(scene.now - storage.last_access, SHORTEST)


def idle(scene: Scene, storage: Storage) -> float:
    """How long nobody will miss it: with a tier the engine tells that, else as long as it has not been used."""
    return storage.idle if scene.options.swap else staleness(scene, storage)


def cost_of_leaving(scene: Scene, storage: Storage) -> float:
    """Of the cheapest way out and back: to be made again, or to swap, for what the engine tells."""
    if not storage.producer:
        return storage.swap_cost
    return min(scene.lineage.projected_cost(storage), storage.swap_cost)


def score(scene: Scene, storage: Storage) -> float:
    """Cost over time. Nothing for what is spare. What is wanted is dearer than anything else, and the deeper the dearer."""
    if storage.wanted:
        return (1.0 + (storage.producer.depth if storage.producer else 0)) / SHORTEST
    if storage.spare:
        return 0.0
    return cost_of_leaving(scene, storage) / idle(scene, storage)


def find_room(scene: Scene, needed: int) -> tuple[Run, Scene]:
    """Which run leaves, and the scene in which it was found.

    What waiting ops will read leaves only if nothing else makes room; or instead of a source that has to be written, which
    would be waited for twice, now and soon, if all that leaves takes less time then (only with windows). Where the policy has no answer, any policy
    takes the cheapest window, and what can leave does, however dear it is."""
    run: Run = []
    scene.unwritten_too = True
    for scene.wanted_too in (False, True):
        run = choose(scene, needed)
        if not run:
            scene.terms = replace(scene.terms, price=inf)
            run = cheapest_window(scene, needed, scene.options.rescue)
        if run:
            break
    unwritten = [b for b in leaving(scene, run) if b.storage and not b.storage.producer and not b.storage.page]
    if not unwritten or scene.wanted_too or not scene.yielding or not by_windows(scene.options):
        return run, scene
    other = replace(scene, wanted_too=True, unwritten_too=False)
    instead = choose(other, needed)
    wanted = any(block.storage and block.storage.wanted for block in leaving(other, instead))
    if wanted and cost_of_run(other, instead) < cost_of_run(scene, run):
        return instead, other
    return run, scene


def by_windows(options: Options) -> bool:
    return options.policy == "coop" and options.window


def leaving(scene: Scene, run: Run) -> list[Block]:
    return [block for block in run if block.storage and not stays(scene, block)]


def cost_of_run(scene: Scene, run: Run) -> float:
    storages = [block.storage for block in leaving(scene, run) if block.storage]
    return plain_sum([cost_of_leaving(scene, storage) for storage in storages if not storage.spare])


def choose(scene: Scene, needed: int) -> Run:
    """The policy's answer; empty if it has none."""
    return choose_window(scene, needed) if by_windows(scene.options) else choose_one(scene)


def choose_one(scene: Scene) -> Run:
    """The storage of least value that may leave; the lowest of several."""
    blocks = [block for block in scene.arena.blocks if block.storage and scene.may_leave(block.storage)]
    if not blocks:
        return []
    best = min(blocks, key=lambda block: value_of_one(scene, block))
    assert best.storage
    scene.found = replace(scene.found, price=score(scene, best.storage) / best.bytes)
    return [best]


def value_of_one(scene: Scene, block: Block) -> float:
    storage, name = block.storage, scene.options.policy
    assert storage
    if name == "lru":
        return -1.0 if storage.spare else storage.last_access
    if name == "dtr":
        return score(scene, storage) / block.bytes
    if name == "delta":
        if storage.wanted or storage.spare:
            return score(scene, storage)
        return 1.0 / (block.bytes * staleness(scene, storage))
    # DTE, and Coop without its window: the free neighbours count as won.
    neighbours = (scene.arena.below(block), scene.arena.above(block))
    free = sum(other.bytes for other in neighbours if other and other.state == FREE)
    return score(scene, storage) / (block.bytes + free)


def choose_window(scene: Scene, needed: int) -> Run:
    """Coop: spare storages near the mark if they do, else the cheapest window, which is the mark from now on."""
    if scene.options.keep_dead and (run := spare_window(scene, needed)):
        return run
    run = cheapest_window(scene, needed, scene.options.move)
    if run:
        scene.arena.mark[scene.side] = run[0] if scene.side == LOW else run[-1]
    return run


def spare_window(scene: Scene, needed: int) -> Run:
    """From the mark of the request's side inwards, over at most FAR blocks: the first run of free blocks and spare
    storages that is large enough. Where it ends is the mark from now on."""
    blocks = scene.arena.blocks if scene.side == LOW else scene.arena.blocks[::-1]
    mark = scene.arena.mark[scene.side]
    if mark is None:
        return []
    start = blocks.index(mark)
    run: Run = []
    for block in blocks[start : start + FAR]:
        storage = block.storage
        if block.state != FREE and not (storage and storage.spare and storage.evictable()):
            run = []
            continue
        run.append(block)
        if sum(b.bytes for b in run) < needed:
            continue
        while sum(b.bytes for b in run[1:]) >= needed:
            del run[0]
        scene.arena.mark[scene.side] = block
        return run if scene.side == LOW else run[::-1]
    return []


@dataclass
class Item:
    """A block that may be part of a window."""

    block: Block
    gain: int
    """Bytes that the request could use."""
    cost: float


def cheapest_window(scene: Scene, needed: int, may_move: bool) -> Run:
    """The cheapest of all minimal windows: runs of blocks that gain enough, and do not without their first or last block.

    Free blocks cost nothing, and what is evictable its score. What is not, and not locked, may be slid aside if moves are
    allowed: that gains nothing, and costs its bytes over the bandwidth, over the mean staleness of what left by the search
    before. So may what is much dearer than its bytes are worth. All else (raw blocks, locked storages, transfers) is a wall.
    A window's price is the sum, per byte gained or not.

    Of several cheapest windows, the lowest is taken for a request of the low side, the highest for one of the high side.
    """
    runs: list[list[Item]] = [[]]  # between walls
    for block in scene.arena.blocks:
        storage = block.storage
        if block.state == FREE:
            runs[-1].append(Item(block, block.bytes, 0.0))
        elif storage and scene.may_leave(storage) and not (may_move and stays(scene, block)):
            runs[-1].append(Item(block, block.bytes, score(scene, storage)))
        elif storage and may_move and storage.movable:
            runs[-1].append(Item(block, 0, cost_of_moving(scene, block)))
        else:
            runs.append([])

    windows = [window for run in runs for window in minimal_windows(run, needed)]
    if not windows:
        return []
    prices = [price(scene, window) for window in windows]
    least = min(prices)
    best = prices.index(least) if scene.side == LOW else len(prices) - 1 - prices[::-1].index(least)
    stale = [scene.now - item.block.storage.last_access for item in windows[best] if item.gain and item.block.storage]
    scene.found = Terms(
        plain_sum(stale) / len(stale) if stale else scene.found.staleness,
        least if scene.options.per_byte else least / needed,
    )
    return [item.block for item in windows[best]]


def cost_of_moving(scene: Scene, block: Block) -> float:
    return block.bytes / scene.options.copy_bandwidth / max(scene.terms.staleness, SHORTEST)


def stays(scene: Scene, block: Block) -> bool:
    """Whether a storage is moved to the edge of a run instead of leaving: it cannot leave, or moving it and doing without
    its bytes is clearly cheaper."""
    storage, options = block.storage, scene.options
    assert storage
    if not scene.may_leave(storage):
        return True
    if not by_windows(options) or not options.move or storage.wanted or storage.spare or scene.terms.price == inf:
        return False
    room = CLEARLY * scene.terms.price * block.bytes
    return score(scene, storage) > cost_of_moving(scene, block) + room


def minimal_windows(run: list[Item], needed: int) -> list[list[Item]]:
    """From the lowest to the highest."""

    def gain(items: list[Item]) -> int:
        return sum(item.gain for item in items)

    windows = []
    for last in range(len(run)):
        for first in range(last + 1):
            window = run[first : last + 1]
            if gain(window) >= needed and gain(window[1:]) < needed and gain(window[:-1]) < needed:
                windows.append(window)
    return windows


def price(scene: Scene, window: list[Item]) -> float:
    """Added exactly, so that the order of the blocks does not matter, and rounded once. The engine adds in extended
    precision, which is the same but for one case in thousands."""
    whole = sum((Fraction(item.cost) for item in window), Fraction())
    return float(whole / sum(item.gain for item in window) if scene.options.per_byte else whole)


def plain_sum(values: list[float]) -> float:
    """One after the other, as the engine adds; sum() may compensate for rounding."""
    total = 0.0
    for value in values:
        total += value
    return total
