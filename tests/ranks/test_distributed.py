"""Programs of several ranks give the same bits inside of budgets as without, whatever is evicted
while bytes travel."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ranks.compare import LEAVE_EARLY, SHARES
from ranks.programs import PROGRAMS

pytestmark = pytest.mark.slow

RANKS = Path(__file__).with_name("compare.py")


def run_ranks(folder: Path, names: list[str], ranks: int = 2, **options: Any) -> list[list[dict[str, Any]]]:
    """What each rank has found."""
    out = folder / "found"
    environment = os.environ | {"COOP_TEST_OPTIONS": json.dumps(options), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, str(RANKS), str(out), *names], env=environment, capture_output=True, text=True, timeout=600
    )
    files = [Path(f"{out}.{rank}.json") for rank in range(ranks)]
    assert all(file.exists() for file in files), done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(file.read_text()) for file in files]


def check(found: list[list[dict[str, Any]]], names: list[str]) -> None:
    wrong = [
        f"rank {rank}, {row['program']} at {row.get('share')}: {row.get('error', 'bits')}"
        for rank, rows in enumerate(found)
        for row in rows
        if not row.get("same")
    ]
    assert not wrong, "\n".join(wrong)  # of all ranks: the first to fail takes the others with it
    for rank, rows in enumerate(found):
        assert {row["program"] for row in rows} == set(names)
        for name in set(names) & set(PROGRAMS):
            mine = [row for row in rows if row["program"] == name]
            assert len(mine) == 1 + len(SHARES)
            assert sum(row["evictions"] for row in mine) > 0, f"rank {rank}, {name}: nothing was evicted"


SOME = [
    "all_reduce_asynchronous", "gather_lists", "all_to_all", "send_and_receive_asynchronous", "several_groups", "functional_late",
    "ddp_plain", "fsdp_resharding", "fsdp_keeping", "tensor_parallel", "pipeline_interleaving",
]  # fmt: skip
"""One of each kind."""
OPTIONS: dict[str, dict[str, Any]] = {
    "checked": {"checks": 2},
    "swapping": {"checks": 1, "swap": "1GiB", "swap_least": 1},
    # Copies before writing would need more than the peak without a budget.
    "dtr": {"checks": 1, "policy": "dtr", "rescue": True, "in_place": True},
}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param("checked", list(PROGRAMS), id="checked"),
        pytest.param("swapping", SOME, id="swapping"),
        pytest.param("dtr", SOME, id="dtr"),
        pytest.param("swapping", list(PROGRAMS), id="swapping, all", marks=pytest.mark.thorough),
        pytest.param("dtr", list(PROGRAMS), id="dtr, all", marks=pytest.mark.thorough),
    ],
)
def test_programs_of_two_ranks_give_the_same_bits(tmp_path: Path, options: str, names: list[str]) -> None:
    found = run_ranks(tmp_path, names, **OPTIONS[options])
    check(found, names)
    for rows in found:
        floors = {row["program"]: row["floor"] for row in rows if "floor" in row}
        assert floors["fsdp_resharding"] <= 1.1 * floors["fsdp_keeping"]  # each gathered parameter is there once


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*SOME, "fsdp_hybrid"], id="some"),
        pytest.param(list(PROGRAMS), id="all", marks=pytest.mark.thorough),
    ],
)
def test_programs_of_four_ranks_give_the_same_bits(tmp_path: Path, names: list[str]) -> None:
    check(run_ranks(tmp_path, names, ranks=4, checks=1), names)


def test_a_scope_may_end_while_bytes_are_on_their_way(tmp_path: Path) -> None:
    check(run_ranks(tmp_path, [LEAVE_EARLY]), [LEAVE_EARLY])
