"""The figures of all ranks, gathered by rank 0 when the program ends.

Through a store, not by a collective: ranks may be dead, or wait for one that is. torchrun's agent
has a store that outlives its ranks. Each rank leaves a note there when it begins, with its host and
its process, and its figures when it ends. Rank 0 takes what is there within a time limit.

Other launchers have no such store. Then the default process group's serves if the program has not
destroyed it. There the others make sure that rank 0 is gathering, and otherwise report themselves.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from coop.distributed.place import Place
from coop.distributed.stores import programs_store, store_at, until

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_CONNECT = timedelta(seconds=5)

Figures = Mapping[str, Any]
"""What a rank leaves: JSON."""


class Gathering:
    """One rank's part in it, from the beginning of the program to its end."""

    def __init__(self, place: Place, environment: Mapping[str, str] = os.environ) -> None:
        self.place = place
        self.attempt = int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self._agents = _agents_store(environment, self.attempt)
        if self._agents is not None:
            note = {"host": place.host, "process": os.getpid()}
            with contextlib.suppress(RuntimeError):
                self._agents.set(f"{place.rank}", json.dumps({"note": note}))

    def leave(self, figures: Figures, seconds: float) -> bool:
        """Leaves this rank's figures for rank 0. False: nobody will see them."""
        said = json.dumps({"figures": dict(figures)})
        try:
            if self._agents is not None:
                self._agents.set(f"{self.place.rank}", said)
                return True
            if (store := _programs_store()) is None:
                return False
            store.set(f"{self.place.rank}", said)
            if not until(seconds, lambda: store.check(["gathering"])):
                return False
            store.set(f"seen/{self.place.rank}", "")
            return True
        except RuntimeError:  # whoever has the store is gone
            return False

    def collect(self, seconds: float) -> tuple[dict[int, Figures], dict[int, str]] | None:
        """The figures of the other ranks, and who the ranks are that have left none. None: there
        is no store to find them in."""
        store = self._agents or _programs_store()
        if store is None:
            return None
        found: dict[int, Figures] = {}
        silent = {rank: f"rank {rank}" for rank in range(self.place.world) if rank != self.place.rank}

        def all_are_there() -> bool:
            for rank in list(silent):
                said = _said(store, rank, seen=self._agents is None)
                if "figures" in said:
                    found[rank] = said["figures"]
                    del silent[rank]
                elif "note" in said:
                    silent[rank] = f"rank {rank} on {said['note']['host']}, process {said['note']['process']}"
            return not silent

        with contextlib.suppress(RuntimeError):
            if self._agents is None:
                store.set("gathering", "")
            until(seconds, all_are_there)
        return found, silent


def _agents_store(environment: Mapping[str, str], attempt: int) -> "Store | None":
    """A client of our own: the program's may wait for something."""
    if not dist.is_available() or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    try:
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        return store_at(host, port, f"coop/{environment.get('TORCHELASTIC_RUN_ID', '')}/{attempt}", _CONNECT)
    except (KeyError, ValueError, RuntimeError):
        return None


def _programs_store() -> "Store | None":
    if not dist.is_available() or not dist.is_initialized():
        return None
    return programs_store("coop/report")


def _said(store: "Store", rank: int, seen: bool) -> dict[str, Any]:
    """Empty: nothing yet. `seen`: the rank also has to know that somebody gathers."""
    if not store.check([f"{rank}"]) or (seen and not store.check([f"seen/{rank}"])):
        return {}
    said = json.loads(store.get(f"{rank}"))
    return said if isinstance(said, dict) else {}
