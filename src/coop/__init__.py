"""Coop: PyTorch programs inside a hard memory budget, to the same bits.

    import coop

    with coop.budget("4GiB") as memory:
        train()                      # unmodified
    print(memory.stats())

`budget` opens a scope in which every tensor byte lies in one arena of the size you name. `measure`
opens one without a limit and tells what the same program needs. `record` gives a trace of one
step, and `plan` decides in advance what to recompute in it. `OutOfBudget` is raised when even
eviction cannot make room; `agree` lets all ranks of a distributed program raise it together.
"""

from coop._version import __version__, check_torch

check_torch()

from coop import plan  # noqa: E402  the check comes first
from coop.budget import Memory, budget, measure  # noqa: E402
from coop.distributed.agreement import agree  # noqa: E402
from coop.errors import OutOfBudget  # noqa: E402
from coop.event_file import EventFile  # noqa: E402
from coop.events import Event, Stats  # noqa: E402
from coop.policies import POLICIES  # noqa: E402
from coop.sizes import parse_bytes  # noqa: E402
from coop.tiers import Disk  # noqa: E402
from coop.trace.recording import record  # noqa: E402

__all__ = [
    "POLICIES",
    "Disk",
    "Event",
    "EventFile",
    "Memory",
    "OutOfBudget",
    "Stats",
    "__version__",
    "agree",
    "budget",
    "measure",
    "parse_bytes",
    "plan",
    "record",
]
