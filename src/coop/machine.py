"""What this machine has."""

import contextlib
import os
from pathlib import Path


def machine_bytes() -> int:
    """Memory of the machine, or of the container if that is less. 0: the system does not say."""
    limits = []
    with contextlib.suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroups, new and old
        with contextlib.suppress(ValueError, OSError):
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))  # ValueError: "max"
    return min(limits, default=0)
