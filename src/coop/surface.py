"""What the engine lists in its headers: kinds of events, options, figures.

Made by tools/surface.py. Not to be edited: the lists are in csrc/engine.
"""

import dataclasses

# fmt: off

EVENT_KINDS: dict[str, str] = {
    "place": "a raw block is handed out",
    "bind": "the block holds this storage from now on; storage 0: it is raw again",
    "record": "the storage can be recomputed from now on; value: the cost of its op",
    "commit": "the storage can no longer be recomputed",
    "die": "nobody outside refers to it any more",
    "evict": "its block is free; it can be recomputed, or a copy is outside",
    "restore": "the raw block holds it again: an op has run again",
    "out": (
        "a transfer has ended: a copy of the storage is outside; storage 0: it died meanwhile; "
        "value: seconds of the transfer; waited: of these, and before it began, by the program"
    ),
    "in": (
        "a transfer has ended: the raw block holds the storage again; value and waited as for out"
    ),
    "move": "value: the offset it comes from",
    "free": "the block is free, and what it held is gone for good",
    "search": "bytes: asked for; value: seconds",
    "shortage": "no room was found; bytes: requested",
    "plan_adopted": "a plan is in force from now on; value: its ops",
    "plan_lost": "the program does something else than was planned; value: the op of the plan",
    "ran": "checks 2: an op has run, and what follows from it is done; value: its cost",
    "write": "checks 2: a transfer out begins",
    "read": "checks 2: a transfer into the raw block begins",
    "price": (
        "checks 2, with a tier: what a choice is made by; storage 0: room for these bytes is "
        "looked for, or, if none, everything leaves; then each storage there: value: seconds "
        "that leaving with its bytes costs, waited: its idle time"
    ),
    "idle": "the same for a storage that cannot leave with its bytes; waited: its idle time",
}
"""The kinds of events, and what they mean."""

OPTIONS: dict[str, str] = {
    "budget": "Bytes of the arena.",
    "alignment": "Blocks are multiples of so many bytes.",
    "policy": "What chooses the victims: the name of a registered policy.",
    "placement": "Which hole a new block takes.",
    "cost": "How the cost of an eviction is found.",
    "window": "Victims are one run of neighbours (coop).",
    "partition": "Cheap and expensive results go to opposite sides.",
    "per_byte": "A window's cost is divided by its bytes (coop).",
    "needed_only": "Costs count only evicted storages that are needed.",
    "keep_dead": "What nobody holds stays until its room is needed.",
    "in_place": "In-place ops rename versions; off: copy on write.",
    "move": "Sources and expensive results in a window's way are copied aside (coop).",
    "rescue": "Where nothing else helps, blocks are moved together.",
    "evict": "Off: nothing leaves, and memory is only measured.",
    "record_backward": "Gradients inside a backward pass are recorded too.",
    "tiny": "Storages up to this size are never worth evicting.",
    "max_depth": "Longer chains of ops are cut by committing.",
    "max_versions": "Longer chains of in-place versions are cut as well.",
    "exact_limit": "Ops visited for a cost before union-find takes over.",
    "copy_bandwidth": "Bytes per second inside the arena, to price a move.",
    "swap": "Storages may leave with their bytes, over the link to the swap tier.",
    "swap_out": "Bytes per second of the link out, to begin with: then it is measured.",
    "swap_in": "Bytes per second of the link in, likewise.",
    "swap_least": "Storages below this size do not swap.",
    "swap_load": "What a transfer slows ops down, as a share of its time.",
    "foresee": "With swap: uses are predicted from the last step.",
    "checks": (
        "Rule checks: 0 none, 1 cheap ones, 2 at every event, 3 with all evicted after each op."
    ),
}
"""The engine's options, and what they do."""


@dataclasses.dataclass(frozen=True)
class StatsFields:
    """The engine's figures. Bytes are ints, times are seconds."""

    budget: int = 0
    """The bytes allowed; the size of the arena."""
    in_use: int = 0
    """Bytes held by the program and by running kernels now."""
    peak: int = 0
    """The most that was in use at once."""
    cached: int = 0
    """Bytes of recomputed results that nobody holds: kept while there is room, and the first to
    leave."""
    free: int = 0
    """Bytes that hold nothing."""
    largest_free: int = 0
    """The largest free block."""
    sources: int = 0
    """Bytes that nothing can recompute: parameters, buffers, data, optimizer state."""
    floor: int = 0
    """The most that a single op needed at once, and, unless they swap, the sources with it. No
    budget below it can serve this program."""
    evictions: int = 0
    """Storages that were evicted while the program held them."""
    rematerialisations: int = 0
    """Storages that came back because an op ran again."""
    replays: int = 0
    """Ops that were run again."""
    moves: int = 0
    """Storages that were copied to another place in the arena."""
    commits: int = 0
    """Storages that cannot be recomputed any more, by decision."""
    allocations: int = 0
    """Blocks that were handed out."""
    ops: int = 0
    """Ops that the program ran."""
    recorded_ops: int = 0
    """Of these, those that could be run again."""
    storages: int = 0
    """Storages that exist now, in the arena or not."""
    records: int = 0
    """Ops that are recorded now."""
    looks: int = 0
    """Records that were examined to find what can be released."""
    searches: int = 0
    """Searches for something to evict."""
    exact_costs: int = 0
    """Costs that were found by visiting every evicted neighbour."""
    union_find_costs: int = 0
    """Costs that were estimated from components."""
    evicted_bytes: int = 0
    """Bytes of all evictions."""
    moved_bytes: int = 0
    """Bytes of all moves."""
    op_seconds: float = 0.0
    """Time in the program's own ops."""
    recompute_seconds: float = 0.0
    """Time in ops that were run again."""
    search_seconds: float = 0.0
    """Time in searches."""
    move_seconds: float = 0.0
    """Time in moves."""
    fragmentation: float = 0.0
    """Free bytes that were left after requests that forced an eviction, as a share of the
    budget, on average."""
    swaps_out: int = 0
    """Transfers out: a copy of a storage was written outside."""
    swaps_in: int = 0
    """Transfers in: a storage was read back."""
    swapped_out: int = 0
    """Bytes of the transfers out."""
    swapped_in: int = 0
    """Bytes of the transfers in."""
    transfer_seconds: float = 0.0
    """Time of all transfers."""
    hidden_seconds: float = 0.0
    """Of these, what the program did not wait for."""
    waited_seconds: float = 0.0
    """Time that the program waited for transfers. May be more than one takes, where it waits
    behind others."""
    prefetch_hits: int = 0
    """Storages that were back, or on their way, when needed."""
    prefetch_misses: int = 0
    """Storages that had to be asked for when needed."""
    planned_steps: int = 0
    """Steps that followed the plan to their end."""
    planned_ops: int = 0
    """Ops that followed the plan."""
    plan_losses: int = 0
    """How often the program did something else than was planned."""
