"""Runs the command `coop` inside the test process: fast, and tests see its exit code and output."""

import sys
from dataclasses import dataclass

import pytest

from coop import cli


@dataclass
class Ended:
    code: int
    out: str
    err: str


def coop(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    before = sys.argv
    sys.argv = ["coop", *map(str, arguments)]
    try:
        cli.main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv = before
    out, err = capsys.readouterr()
    return Ended(code, out, err)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence on stderr of a command that is refused."""
    ended = coop(capsys, *arguments)
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.err.startswith("coop: ")
    assert ended.err.count("\n") == 1
    return ended.err.removeprefix("coop: ").rstrip("\n")
