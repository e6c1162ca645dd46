"""The budget of each rank, out of what `coop run --budget` says.

    4GiB         for each rank
    8GiB/node    divided by the ranks of the machine
    4GiB,2GiB    for rank 0 and rank 1: ranks of a pipeline differ

Together, the ranks of a machine must not have more than the machine has.
"""

from coop.distributed.place import Place
from coop.machine import machine_bytes
from coop.sizes import format_bytes, parse_bytes

_PER_NODE = "/node"


def budget_of(text: str, place: Place | None, machine: int | None = None) -> int:
    """Bytes for the rank at this place; None: the only process. `machine`: the bytes that it has.
    Raises ValueError, with one sentence that is the same on all ranks of a machine."""
    items = text.split(",")
    if len(items) > 1:
        return _of_list(text, items, place, machine)
    if text.rstrip().endswith(_PER_NODE):
        whole = parse_bytes(text.rstrip().removesuffix(_PER_NODE))
        ranks = _ranks_of_machine(text, place)
        if whole < ranks:
            raise ValueError(f"{text!r} is less than one byte for each of the {ranks} ranks of this machine")
        _refuse_more_than_there_is([whole // ranks] * ranks, machine)
        return whole // ranks
    each = parse_bytes(text)
    if place is not None:
        _refuse_more_than_there_is([each] * len(place.neighbours), machine)
    return each


def _of_list(text: str, items: list[str], place: Place | None, machine: int | None) -> int:
    if not all(item.strip() for item in items):
        raise ValueError(f"{text!r} has an empty item: a list has one budget for each rank, such as '4GiB,2GiB'")
    if any(item.rstrip().endswith(_PER_NODE) for item in items):
        raise ValueError(f"{text!r} is both a list and {_PER_NODE}: a list has one budget for each rank")
    budgets = [parse_bytes(item) for item in items]
    if place is None:
        raise ValueError(
            f"{text!r} has budgets for {len(items)} ranks, and this is the only process. Tip: start it with torchrun"
        )
    if len(items) != place.world:
        raise ValueError(f"{text!r} has budgets for {len(items)} ranks, and there are {place.world}")
    _refuse_more_than_there_is([budgets[rank] for rank in place.neighbours], machine)
    return budgets[place.rank]


def _ranks_of_machine(text: str, place: Place | None) -> int:
    if place is None:
        return 1
    if place.local_world is None:
        raise ValueError(
            f"{text!r} is divided by the ranks of this machine, and the launcher does not say how many they are. "
            "Tip: torchrun does, or set LOCAL_RANK and LOCAL_WORLD_SIZE"
        )
    return place.local_world


def _refuse_more_than_there_is(budgets: list[int], machine: int | None) -> None:
    has = machine_bytes() if machine is None else machine
    if len(budgets) == 1 or not has or sum(budgets) <= has:
        return  # a single one is refused by coop.budget
    each = f"{len(budgets)} ranks with {format_bytes(budgets[0])} each"
    if len(set(budgets)) > 1:
        each = f"{len(budgets)} ranks with {' and '.join(format_bytes(count) for count in budgets)}"
    raise ValueError(
        f"{each} need {format_bytes(sum(budgets))}, and this machine has {format_bytes(has)} of memory. "
        "Tip: --budget SIZE/node divides SIZE by the ranks of the machine"
    )
