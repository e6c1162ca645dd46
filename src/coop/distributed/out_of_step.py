"""A rank that has run out of budget, has caught the error and goes on.

Ranks pair their collectives by order alone. If the other ranks did not run out, the next collective
of this one would be paired with one of theirs from the step that it left: gradients would be wrong,
and nothing would say so. So a rank that runs out says at which collective that was, in the store of
the default process group. Before its next collective it looks whether all others have said the
same. Then they all left the step at the same place, and go on. Otherwise the collective is refused.

Collectives outside of a scope are not seen. Ranks that issue different numbers of collectives, as
in a pipeline, cannot be compared, and are refused as well: coop.agree is for them.
"""

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch.distributed as dist

from coop import _C
from coop.distributed.place import place_now
from coop.distributed.stores import programs_store, until

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LIMIT = 5.0
"""Seconds that the others have to say that they ran out too."""


class OutOfStep(RuntimeError):
    """This rank ran out of budget and went on; others did not. Its collectives would be paired
    with the wrong ones."""


@dataclass
class _Failure:
    op: str
    collectives: int
    """That this rank had issued before."""
    group: "ref[Any]"
    """The default process group then."""
    refused: str = ""
    """The sentence with which a collective was refused."""


_last: _Failure | None = None


def ran_out(op: str) -> None:
    """This rank has run out of budget in an op of the program."""
    global _last
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if _last is not None and _last.refused and _last.group() is dist.group.WORLD:
        return
    _last = _Failure(op, _C.collectives(), ref(dist.group.WORLD))
    with contextlib.suppress(RuntimeError):  # the store is gone: then so is whoever would ask
        _store().set(_key(_last, dist.get_rank()), op)
    _C.suspect(True)


def in_step() -> None:
    """The ranks have agreed: what happened before does not matter any more."""
    global _last
    if _last is not None and not _last.refused:
        with contextlib.suppress(RuntimeError):
            _store().delete_key(_key(_last, dist.get_rank()))
        _last = None
        _C.suspect(False)


def _judge(collective: str) -> None:
    """Called before the first collective after a failure. Raises OutOfStep."""
    global _last
    if _last is None or not dist.is_initialized() or dist.group.WORLD is not _last.group():
        _last = None  # there is a new group, and in it everybody begins anew
        _C.suspect(False)
        return
    if not _last.refused:
        others = _that_did_not_run_out(_last)
        if not others:
            _last = None
            _C.suspect(False)
            return
        _last.refused = (
            f"{place_now()} ran out of budget in {_last.op} and went on to {collective}, but {_named(others)} did not run "
            f"out there, or not within {LIMIT:.0f} s: the collective would meet another one's, and its results would be "
            "wrong. Tip: coop.agree() around what may run out lets all ranks raise OutOfBudget together; otherwise let "
            "the program end"
        )
    raise OutOfStep(_last.refused)


def _that_did_not_run_out(failure: _Failure) -> list[int]:
    store = _store()
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]

    def all_did() -> bool:
        while others and store.check([_key(failure, others[0])]):
            others.pop(0)
        return not others

    with contextlib.suppress(RuntimeError):  # the store is gone
        until(LIMIT, all_did)
        return [rank for rank in others if not store.check([_key(failure, rank)])]
    return others


def _store() -> "Store":
    return programs_store("coop/ran out")


def _key(failure: _Failure, rank: int) -> str:
    return f"{failure.collectives}/{rank}"


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


_C.set_judge(_judge)
