"""`coop plan` of several steps or budgets: a plan for each step in each budget, here one after the
other or on the workers of a cluster.

    coop plan rank*.trace --budget 20GiB --budget 30GiB -o plans/ --on tcp://scheduler:8786

A plan is written as soon as it is found: plans/rank0@20GiB.plan and so on.
"""

import contextlib
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from coop.commands import refuse
from coop.plan import Plan, graph_of, solve, write
from coop.plan.figures import figures
from coop.sizes import format_bytes
from coop.spread import Cluster, ClusterError
from coop.trace.formats import read_content

Answer = tuple[Plan, dict[str, Any]]


class Wanted(NamedTuple):
    file: Path
    size: str

    def __str__(self) -> str:
        return f"{self.file.name.removesuffix('.trace')}@{self.size}"


def plan_set(
    files: list[Path],
    sizes: list[str],
    output: Path | None,
    address: str | None,
    as_json: bool,
    settings: dict[str, Any],
) -> None:
    """`settings` are arguments of `solve`. Raises ValueError and ClusterError."""
    wanted = [Wanted(file, size) for file in files for size in sizes]
    if len(set(map(str, wanted))) < len(wanted):
        raise ValueError("two of the plans would have the same name: files have to have different names")
    if output is not None:
        if output.exists() and not output.is_dir():
            raise ValueError(f"{output} is a file, and several plans need a folder")
        output.mkdir(parents=True, exist_ok=True)
    contents = {file: file.read_bytes() for file in files}
    found: dict[Wanted, dict[str, Any]] = {}
    failed: dict[Wanted, BaseException] = {}
    lost: ClusterError | None = None
    try:
        with contextlib.closing(_answers(wanted, contents, address, settings)) as answers:
            for one, answer in answers:
                if isinstance(answer, BaseException):
                    failed[one] = answer
                    print(f"{one}: {_sentence(answer)}", file=sys.stderr, flush=True)
                    continue
                plan, told = answer
                if output is not None:
                    write(plan, output / f"{one}.plan")
                found[one] = told
                print(f"{one}: {plan.increase:+.3%}, {plan.status}", file=sys.stderr, flush=True)
    except ClusterError as error:
        if not found and not failed:
            raise
        lost = error
    _tell(wanted, found, as_json)
    kept = f"; the {len(found)} that were found are written" if output is not None and found else ""
    if lost is not None:
        refuse(f"{lost}{kept}")
    if failed:
        first, why = next(iter(failed.items()))
        refuse(f"{len(failed)} of {len(wanted)} plans were not found, such as {first}: {_sentence(why)}{kept}")


def _answers(
    wanted: list[Wanted], contents: dict[Path, bytes], address: str | None, settings: dict[str, Any]
) -> Generator[tuple[Wanted, Answer | BaseException], None, None]:
    if address is None:
        for one in wanted:
            try:
                yield one, solve_content(contents[one.file], str(one.file), one.size, settings)
            except ValueError as error:
                yield one, error
        return
    with Cluster(address) as cluster:
        shared = {file: cluster.share(content) for file, content in contents.items()}
        arguments = [(shared[one.file], str(one.file), one.size, settings) for one in wanted]
        for number, answer in cluster.calls(solve_content, arguments):
            yield wanted[number], answer


def solve_content(content: bytes, name: str, size: str, settings: dict[str, Any]) -> Answer:
    """Plans a step that is given as the content of its file."""
    graph = graph_of(read_content(content, name))
    plan = solve(graph, size, **settings)
    return plan, figures(plan, graph)


def _tell(wanted: list[Wanted], found: dict[Wanted, dict[str, Any]], as_json: bool) -> None:
    rows = [{"trace": str(one.file), "asked": one.size, **found[one]} for one in wanted if one in found]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("step", "budget"):
        table.add_column(name, no_wrap=True)
    for name in ("budget in bytes", "duration increase", "certified gap", "peak", "time"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            Path(row["trace"]).name,
            row["asked"],
            format_bytes(row["budget"]),
            f"{row['duration_increase']:.3%}",
            f"{row['gap']:.3%}",
            format_bytes(row["peak"]),
            f"{row['seconds']:.1f} s",
        )
    Console().print(table)


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
