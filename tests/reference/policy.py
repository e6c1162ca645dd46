"""The reference's policies: which neighbouring blocks leave for a request?

Part of the specification in play.py. A policy answers with a run of blocks, lowest first. The
engine evicts what is evictable in it and slides the rest to its low edge. Coop's run is large
enough at once. DTR, DTE, DELTA and LRU name one storage at a time, and are asked again until the
hole is large enough.
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
"""A storage moves instead of leaving if it costs more than this many times the price of its
bytes."""
FAR = 64
"""Blocks that the search for droppable storages visits."""

Run = list[Block]


@dataclass(frozen=True)
class SearchPrice:
    """What the last search paid."""

    staleness: float = 0.0
    """Mean over the storages that left."""
    per_byte: float = inf
    """Infinite: not known."""


@dataclass
class SearchContext:
    """What a policy may look at."""

    options: Options
    arena: Arena
    lineage: Lineage
    side: str
    now: float
    price: SearchPrice
    """Paid by the last search. It prices moves."""
    found: SearchPrice
    """Paid by this search. It prices the moves of the next one."""
    may_take_wanted: bool = True
    """A wanted storage may leave instead of a source that has to be written first."""
    wanted_too: bool = False
    """Wanted storages may leave."""
    unwritten_too: bool = True
    """Sources that have to be written first may leave."""

    def may_leave(self, storage: Storage) -> bool:
        written = storage.producer is not None or storage.page
        return storage.evictable(self.wanted_too) and (self.unwritten_too or written)


def staleness(context: SearchContext, storage: Storage) -> float:
    return max(context.now - storage.last_access, SHORTEST)


def idle(context: SearchContext, storage: Storage) -> float:
    """Its idle time. With a tier, the engine's events give it; else it is the time since the last
    use."""
    return storage.idle if context.options.swap else staleness(context, storage)


def cost_of_leaving(context: SearchContext, storage: Storage) -> float:
    """The cost of the cheaper way out and back: recomputing, or swapping at the price that the
    engine's events give."""
    if not storage.producer:
        return storage.swap_cost
    return min(context.lineage.projected_cost(storage), storage.swap_cost)


def score(context: SearchContext, storage: Storage) -> float:
    """Cost over idle time. A droppable storage costs nothing. A wanted one costs more than any
    other, and deeper ones cost more."""
    if storage.wanted:
        return (1.0 + (storage.producer.depth if storage.producer else 0)) / SHORTEST
    if storage.droppable:
        return 0.0
    return cost_of_leaving(context, storage) / idle(context, storage)


def find_room(context: SearchContext, needed: int) -> tuple[Run, SearchContext]:
    """Which run leaves, and the context in which it was found.

    A wanted storage leaves only if nothing else makes room, with one exception (only with windows):
    it leaves instead of a source that has to be written, if the whole run then costs less. The
    program would wait for such a source twice: to write it now and to read it soon. If the policy
    has no answer, the cheapest window leaves, whatever the policy, and all that can leave in it
    does, however expensive it is."""
    run: Run = []
    context.unwritten_too = True
    for context.wanted_too in (False, True):
        run = choose(context, needed)
        if not run:
            context.price = replace(context.price, per_byte=inf)
            run = cheapest_window(context, needed, context.options.rescue)
        if run:
            break
    unwritten = [b for b in leaving(context, run) if b.storage and not b.storage.producer and not b.storage.page]
    if not unwritten or context.wanted_too or not context.may_take_wanted or not by_windows(context.options):
        return run, context
    other = replace(context, wanted_too=True, unwritten_too=False)
    instead = choose(other, needed)
    wanted = any(block.storage and block.storage.wanted for block in leaving(other, instead))
    if wanted and cost_of_run(other, instead) < cost_of_run(context, run):
        return instead, other
    return run, context


def by_windows(options: Options) -> bool:
    return options.policy == "coop" and options.window


def leaving(context: SearchContext, run: Run) -> list[Block]:
    return [block for block in run if block.storage and not moves_aside(context, block)]


def cost_of_run(context: SearchContext, run: Run) -> float:
    storages = [block.storage for block in leaving(context, run) if block.storage]
    return plain_sum([cost_of_leaving(context, storage) for storage in storages if not storage.droppable])


def choose(context: SearchContext, needed: int) -> Run:
    """The policy's answer; empty if it has none."""
    return choose_window(context, needed) if by_windows(context.options) else choose_one(context)


def choose_one(context: SearchContext) -> Run:
    """The storage of least value that may leave. On a tie, the one at the lowest address."""
    blocks = [block for block in context.arena.blocks if block.storage and context.may_leave(block.storage)]
    if not blocks:
        return []
    best = min(blocks, key=lambda block: value_of_one(context, block))
    assert best.storage
    context.found = replace(context.found, per_byte=score(context, best.storage) / best.bytes)
    return [best]


def value_of_one(context: SearchContext, block: Block) -> float:
    storage, name = block.storage, context.options.policy
    assert storage
    if name == "lru":
        return -1.0 if storage.droppable else storage.last_access
    if name == "dtr":
        return score(context, storage) / block.bytes
    if name == "delta":
        if storage.wanted or storage.droppable:
            return score(context, storage)
        return 1.0 / (block.bytes * staleness(context, storage))
    if name not in ("dte", "coop"):
        raise ValueError(f"the reference has no rule for the policy {name!r}: add it here")
    # DTE, and Coop without its window: free neighbours count as gained.
    neighbours = (context.arena.below(block), context.arena.above(block))
    free = sum(other.bytes for other in neighbours if other and other.state == FREE)
    return score(context, storage) / (block.bytes + free)


def choose_window(context: SearchContext, needed: int) -> Run:
    """Coop: droppable storages near the mark if they are enough, else the cheapest window, which
    becomes the mark."""
    if context.options.keep_dead and (run := free_window(context, needed)):
        return run
    run = cheapest_window(context, needed, context.options.move)
    if run:
        context.arena.mark[context.side] = run[0] if context.side == LOW else run[-1]
    return run


def free_window(context: SearchContext, needed: int) -> Run:
    """Searches from the mark of the request's side inwards, over at most FAR blocks, for the first
    run of free blocks and droppable storages that is large enough. Its end becomes the mark."""
    blocks = context.arena.blocks if context.side == LOW else context.arena.blocks[::-1]
    mark = context.arena.mark[context.side]
    if mark is None:
        return []
    start = blocks.index(mark)
    run: Run = []
    for block in blocks[start : start + FAR]:
        storage = block.storage
        if block.state != FREE and not (storage and storage.droppable and storage.evictable()):
            run = []
            continue
        run.append(block)
        if sum(b.bytes for b in run) < needed:
            continue
        while sum(b.bytes for b in run[1:]) >= needed:
            del run[0]
        context.arena.mark[context.side] = block
        return run if context.side == LOW else run[::-1]
    return []


@dataclass
class Item:
    """A block that may be part of a window."""

    block: Block
    gain: int
    """Bytes that the request can use."""
    cost: float


def cheapest_window(context: SearchContext, needed: int, may_move: bool) -> Run:
    """The cheapest of all minimal windows: runs of blocks that gain enough, but not without their
    first or last block.

    A free block costs nothing; an evictable storage costs its score. If moves are allowed, a
    storage that is not evictable and not locked may be moved aside. That gains nothing, and costs
    its bytes over the bandwidth, over the mean staleness of the storages that the last search
    evicted. A storage that is much more expensive than its bytes are worth may also be moved aside.
    Everything else (raw blocks, locked storages, transfers) is a wall. A window's price is the sum
    of these, divided by the bytes gained if `per_byte` is on.

    On a tie, the lowest window is taken for a request of the low side, the highest for one of the
    high side.
    """
    runs: list[list[Item]] = [[]]  # between walls
    for block in context.arena.blocks:
        storage = block.storage
        if block.state == FREE:
            runs[-1].append(Item(block, block.bytes, 0.0))
        elif storage and context.may_leave(storage) and not (may_move and moves_aside(context, block)):
            runs[-1].append(Item(block, block.bytes, score(context, storage)))
        elif storage and may_move and storage.movable:
            runs[-1].append(Item(block, 0, cost_of_moving(context, block)))
        else:
            runs.append([])

    windows = [window for run in runs for window in minimal_windows(run, needed)]
    if not windows:
        return []
    prices = [price(context, window) for window in windows]
    least = min(prices)
    best = prices.index(least) if context.side == LOW else len(prices) - 1 - prices[::-1].index(least)
    stale = [context.now - item.block.storage.last_access for item in windows[best] if item.gain and item.block.storage]
    context.found = SearchPrice(
        plain_sum(stale) / len(stale) if stale else context.found.staleness,
        least if context.options.per_byte else least / needed,
    )
    return [item.block for item in windows[best]]


def cost_of_moving(context: SearchContext, block: Block) -> float:
    return block.bytes / context.options.copy_bandwidth / max(context.price.staleness, SHORTEST)


def moves_aside(context: SearchContext, block: Block) -> bool:
    """Whether a storage is moved to the edge of a run instead of leaving: it cannot leave, or it is
    clearly cheaper to move it and not to gain its bytes."""
    storage, options = block.storage, context.options
    assert storage
    if not context.may_leave(storage):
        return True
    if (
        not by_windows(options)
        or not options.move
        or storage.wanted
        or storage.droppable
        or context.price.per_byte == inf
    ):
        return False
    room = CLEARLY * context.price.per_byte * block.bytes
    return score(context, storage) > cost_of_moving(context, block) + room


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


def price(context: SearchContext, window: list[Item]) -> float:
    """The sum is exact, so the order of the blocks does not matter, and is rounded once. The engine
    adds in extended precision. The result differs in one case in thousands."""
    whole = sum((Fraction(item.cost) for item in window), Fraction())
    return float(whole / sum(item.gain for item in window) if context.options.per_byte else whole)


def plain_sum(values: list[float]) -> float:
    """Adds one after the other, as the engine does. sum() may compensate for rounding."""
    total = 0.0
    for value in values:
        total += value
    return total
