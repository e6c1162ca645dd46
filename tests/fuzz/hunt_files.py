"""Mutates files by the thousands and gives them to their readers, each case within a time and a
memory limit.

    python tests/fuzz/hunt_files.py --count 20000               for each reader
    python tests/fuzz/hunt_files.py --only plan --first 1234    from one case on

A case is a reader and a number: the same file each time. Readers run in a process of their own. If
it is silent, it hangs; if it ends, it has crashed. Then it is started again after that case.
Findings are printed, and their files are kept.
"""

import argparse
import collections
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from mutate import mutate  # noqa: E402
from readers import READERS, Reader  # noqa: E402

SECONDS = 30.0
"""For each case, on a machine that may be busy; milliseconds are usual."""
MEMORY = 1 << 30
"""Bytes of address space, beyond what the process has when it begins."""


@dataclass(frozen=True)
class Finding:
    reader: str
    number: int
    what: str


def case(reader: Reader, seeds: list[bytes], number: int) -> bytes:
    choose = random.Random(f"{reader.name} {number}")
    return mutate(choose.choice(seeds), choose)


def hunt(
    reader: Reader, count: int, first: int = 0, seconds: float = float("inf"), keep: Path | None = None
) -> tuple[collections.Counter[str], list[Finding]]:
    """The outcomes of the cases, and the findings. Ends after so many seconds."""
    seeds = reader.seeds()
    for seed in seeds:  # these must be valid, or nothing is tested
        with tempfile.TemporaryDirectory() as folder:
            (path := Path(folder) / f"seed{reader.ending}").write_bytes(seed)
            assert reader.take(path) == "used", reader.name
    became: collections.Counter[str] = collections.Counter()
    findings: list[Finding] = []
    end = time.monotonic() + seconds
    number, last = first, first + count
    while number < last and time.monotonic() < end:
        for what in _outcomes(reader, seeds, number, last, end):
            if what in ("used", "read", "refused"):
                became[what] += 1
            else:
                findings.append(Finding(reader.name, number, what))
                if keep is not None:
                    (keep / f"{reader.name}-{number}{reader.ending}").write_bytes(case(reader, seeds, number))
            number += 1
    return became, findings


def _outcomes(reader: Reader, seeds: list[bytes], first: int, last: int, end: float) -> Iterator[str]:
    """Of one process: until it is done, or silent, or dead."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(reader.name, seeds, first, last, there), daemon=True)
    process.start()
    there.close()
    try:
        assert here.poll(120), "the process does not begin"
        here.recv()
        for _ in range(first, last):
            if time.monotonic() > end:
                return
            if not here.poll(SECONDS):
                yield f"hangs: {SECONDS:.0f} s"
                return
            yield here.recv()
    except EOFError:
        process.join()
        yield f"the process died: {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _work(name: str, seeds: list[bytes], first: int, last: int, answers: Connection) -> None:
    reader = READERS[name]
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"case{reader.ending}"
        path.write_bytes(seeds[0])
        reader.take(path)  # what is imported late is there
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))
        answers.send("begun")
        for number in range(first, last):
            path.write_bytes(case(reader, seeds, number))
            try:
                answers.send(reader.take(path))
            except BaseException:
                answers.send(traceback.format_exc())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(READERS), help="readers, separated by commas")
    parser.add_argument("--count", type=int, default=20_000, help="cases for each reader (20000)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case (0)")
    parser.add_argument("--keep", type=Path, help="a folder for files that show something")
    given = parser.parse_args()
    bad = 0
    for name in given.only.split(","):
        start = time.monotonic()
        became, findings = hunt(READERS[name], given.count, given.first, keep=given.keep)
        shown = ", ".join(f"{count:,} {what}" for what, count in became.most_common())
        print(f"{name}: {shown}; {len(findings)} findings, {time.monotonic() - start:.0f} s", flush=True)
        kinds = {finding.what.strip().splitlines()[-1][:100]: finding for finding in findings}
        for finding in kinds.values():
            print(f"{finding.reader} {finding.number}: {finding.what}", flush=True)
        bad += len(findings)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
