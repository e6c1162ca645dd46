"""A rank's place among the others: which one it is, of how many, and on which machine.

torchrun and other launchers say so in the environment: RANK, WORLD_SIZE, LOCAL_RANK and
LOCAL_WORLD_SIZE. A process that has initialised torch.distributed knows it by itself.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch.distributed


@dataclass(frozen=True)
class Place:
    rank: int
    world: int
    local_rank: int | None = None
    """Among the ranks of its machine. None: the launcher did not say."""
    local_world: int | None = None
    """The ranks of its machine."""
    host: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world} on {self.host}"

    @property
    def neighbours(self) -> range:
        """The ranks of this machine, as far as is known. A launcher counts them one after the
        other."""
        if self.local_rank is None or self.local_world is None:
            return range(self.rank, self.rank + 1)
        first = self.rank - self.local_rank
        return range(first, first + self.local_world)

    def name_for(self, path: str | Path) -> str:
        """The file of this rank: run.events becomes run.rank0.events."""
        path = Path(path)
        return str(path.with_name(f"{path.stem}.rank{self.rank}{path.suffix}"))


def place_in_environment(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Where the launcher has put this process. None: it is the only one. Raises ValueError, with
    one sentence."""
    if not environment.get("RANK") or not environment.get("WORLD_SIZE"):
        return None
    world = _number(environment, "WORLD_SIZE", 1, None)
    rank = _number(environment, "RANK", 0, world - 1)
    if world == 1:
        return None
    local_rank = local_world = None
    if environment.get("LOCAL_RANK") and environment.get("LOCAL_WORLD_SIZE"):
        local_world = _number(environment, "LOCAL_WORLD_SIZE", 1, world)
        local_rank = _number(environment, "LOCAL_RANK", 0, min(local_world - 1, rank))
    return Place(rank, world, local_rank, local_world, socket.gethostname())


def place_now() -> Place | None:
    """The place in the default process group if there is one, otherwise in the environment. None:
    this process is the only one, or the environment makes no sense."""
    try:
        found = place_in_environment()
    except ValueError:
        found = None
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return found
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if world == 1:
        return None
    if found and (found.rank, found.world) == (rank, world):
        return found
    return Place(rank, world, host=socket.gethostname())


def speaks_for_its_machine(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process says what all ranks of its machine would say."""
    return environment.get("LOCAL_RANK", "0") in ("", "0") or not environment.get("RANK")


def _number(environment: Mapping[str, str], name: str, least: int, most: int | None) -> int:
    text = environment[name]
    if not text.strip().isdecimal() or int(text) < least or (most is not None and int(text) > most):
        upto = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise ValueError(f"{name} is {text!r} in the environment, and must be a whole number {upto}")
    return int(text)
