"""Disk faults at every call site in turn: the n-th open, write or read of the page file fails, for
each n.

    python tests/faults/disk.py            all of them
    python tests/faults/disk.py --every 7

A fault costs time, or room (OutOfBudget). A failed read of a tensor that cannot be recomputed costs
that tensor: coop reports that it is lost. No fault changes a bit: the rules hold afterwards, and
the same program runs again in the same scope to the bits of plain PyTorch.
"""

import argparse
import collections
import ctypes
import errno
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

KINDS = {"open": 0, "write": 1, "read": 2}
ERRORS = {"open": ("EACCES",), "write": ("ENOSPC", "EIO", "short"), "read": ("EIO", "short")}
SHORT = -1
HERE = Path(__file__).parent


def preloaded() -> Path:
    """The library, made by the compiler that coop is built with."""
    path = Path(tempfile.mkdtemp(prefix="coop-faults-")) / "failing_disk.so"
    source = str(HERE / "failing_disk.cpp")
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-shared", "-fPIC", source, "-o", str(path), "-ldl"]
    subprocess.run(command, check=True)
    return path


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This program again, with the library before all others."""
    path = preloaded()
    environment = os.environ | {"LD_PRELOAD": str(path), "COOP_FAILING_DISK": str(path)}
    command = [sys.executable, str(HERE / "disk.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def hunt(every: int) -> collections.Counter[str]:
    """The outcome of each fault. AssertionError if a bit differs."""
    from interrupts import Training, measured

    import coop
    from same import assert_same

    disk = ctypes.CDLL(os.environ["COOP_FAILING_DISK"])
    warnings.filterwarnings("ignore", message=".*what was swapped out is lost")

    def trained() -> dict:
        training = Training()
        training.step()
        training.step()
        return training.result()

    expected = trained()
    size = int(0.55 * measured())
    became: collections.Counter[str] = collections.Counter()

    def with_fault(kind: str, number: int, error: str) -> bool:
        """Whether the program reached that call."""
        where = f"{kind} {number} fails with {error}: "
        code = SHORT if error == "short" else getattr(errno, error)
        disk.fail_at(KINDS[kind], number, code)
        with tempfile.TemporaryDirectory() as folder:
            # The file is opened with the scope: a failure is reported at once.
            try:
                memory = coop.budget(size, swap=coop.Disk(folder), checks=1).__enter__()
            except OSError as refusal:
                assert kind == "open" and "no file to swap to" in str(refusal), where
                became["open: refused"] += 1
                return True
            try:
                try:
                    assert_same(expected, trained(), where)
                    outcome = "same bits"
                except coop.OutOfBudget:
                    outcome = "no room"
                except RuntimeError as error_:
                    assert kind == "read" and "lost" in str(error_), f"{where}{error_}"
                    outcome = "lost"
                memory.check()
                came = disk.calls_of(KINDS[kind]) >= number
                disk.fail_at(-1, 0, 0)
                assert_same(expected, trained(), f"{where}afterwards: ")
                memory.check()
            finally:
                disk.fail_at(-1, 0, 0)
                memory.__exit__(None, None, None)
        if came:
            became[f"{kind}: {outcome}"] += 1
        return came

    for kind, errors in ERRORS.items():
        for error in errors:
            number = 1
            while with_fault(kind, number, error):
                number += every
    return became


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="only every so manieth call (1)")
    given = parser.parse_args()
    if "COOP_FAILING_DISK" not in os.environ:
        ended = start("--every", str(given.every))
        sys.stderr.write(ended.stderr)
        sys.stdout.write(ended.stdout)
        raise SystemExit(ended.returncode)
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    for what, count in sorted(hunt(given.every).items()):
        print(f"{what}: {count}")


if __name__ == "__main__":
    main()
