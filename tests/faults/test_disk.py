"""A sample of tests/faults/disk.py: the n-th call on the page file fails."""

import re

import pytest
from disk import start


@pytest.mark.slow
def test_a_disk_that_fails_costs_no_bits():
    ended = start("--every", "9")
    assert ended.returncode == 0, ended.stderr
    found = dict(re.findall(r"(\w+): [\w ]+: (\d+)", ended.stdout))
    assert set(found) == {"open", "write", "read"} and int(found["write"]) >= 5
