"""Starts scripts under torchrun, and as ranks of their own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

LIMIT = 120
"""Seconds that everything may take."""


@dataclass
class Ended:
    code: int
    out: str
    err: str
    at: datetime

    def __str__(self) -> str:
        return f"code {self.code} at {self.at}\n{self.out[-2000:]}\n{self.err[-6000:]}"


def started(folder: Path, *arguments: str, ranks: int = 2) -> "subprocess.Popen[str]":
    """`torchrun ARGUMENTS` in this folder."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.Popen(
        [*launcher, *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def torchrun(folder: Path, *arguments: str, ranks: int = 2) -> Ended:
    """The same, to its end."""
    with started(folder, *arguments, ranks=ranks) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()  # which ends its ranks, too
            raise
    return Ended(process.returncode, out, err, datetime.now())


def coop_run(folder: Path, *arguments: str, options: Sequence[str] = ()) -> Ended:
    """`torchrun OPTIONS -m coop run ARGUMENTS` in this folder, with two ranks."""
    return torchrun(folder, *options, "-m", "coop", "run", *arguments)


def by_hand(folder: Path, *arguments: str, port: int, ranks: int = 2) -> list[Ended]:
    """The same command for each rank, with what env:// asks for and no launcher."""
    processes = []
    for rank in range(ranks):
        environment = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in environment.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [process.communicate(timeout=LIMIT) for process in processes]
    return [Ended(p.returncode, out, err, datetime.now()) for p, (out, err) in zip(processes, told, strict=True)]
