"""A sample of the sweep: the same bits, or a listed case, and no crash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


def sweep(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the sweep forks, and this one has run ops on threads."""
    command = [sys.executable, "-m", "opinfo", *arguments]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=900
    )


@pytest.mark.slow
def test_a_sample_of_all_cases_gives_the_same_bits():
    done = sweep("--programs", "2", "--share", "20")
    assert done.returncode == 0, done.stdout + done.stderr
