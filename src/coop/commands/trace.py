"""`coop trace`: the trace of one step: of a network by shapes alone, of a script that runs, or of
what PyTorch has recorded.

    coop trace bert-large --batch 16 --device a100 -o bert.trace
    coop trace train.py --step 3 -o step.trace -- --the --script's --own
    coop trace train.py --shapes --world-size 64 --rank 0 --device a100 -o rank0.trace
    torchrun --nproc-per-node 2 -m coop trace train.py -o step.trace
    coop trace et.json --kineto kineto.json -o step.trace

A script is stopped when its step is recorded, because scripts may train for hours. It ends as with
`sys.exit()`, so that its own cleanup runs. With `--go-on` it runs to its end.

With `--shapes` a script runs on tensors without bytes, and may be one rank of a group that does
not exist. Under torchrun each rank writes a file of its own: step.rank0.trace and so on.
"""

import os
import sys
from itertools import takewhile
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from coop import models
from coop.commands import Work, refuse
from coop.commands.refusing import refusing
from coop.sizes import format_bytes
from coop.trace import Source, Trace, execution, write
from coop.trace.device import Device, known, load
from coop.trace.peak import peak_bytes
from coop.trace.script import ScriptRecorder
from coop.trace.script_shapes import NeedsValues, trace_shapes
from coop.trace.shapes import shape_trace


@click.command()
@click.option("-o", "--output", "file", required=True, metavar="FILE", help="Where to write the trace.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Examples in a batch of a network.")
@click.option("--device", metavar="NAME", help=f"Modelled costs: {', '.join(known())}, or a .toml file. [a100]")
@click.option("--kineto", metavar="FILE", help="Measured costs of an execution trace: a kineto trace of the same run.")
@click.option("--step", type=click.IntRange(min=1), metavar="N", help="Which step of a script. [3]")
@click.option("--go-on", is_flag=True, help="Let the script run to its end.")
@click.option("--shapes", is_flag=True, help="Run a script on tensors without bytes, with the costs of --device.")
@click.option("--world-size", type=click.IntRange(min=1), metavar="N", help="With --shapes: as one of N ranks.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="With --world-size: which rank. [0]")
@click.argument("target")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def trace(
    file: str,
    batch: int | None,
    device: str | None,
    kineto: str | None,
    step: int | None,
    go_on: bool,
    shapes: bool,
    world_size: int | None,
    rank: int | None,
    target: str,
    args: tuple[str, ...],
) -> Work:
    """Record one step of TARGET: a network of the paper, by name, or a script with its own ARGS
    (after --).

    An execution trace of PyTorch (.json, .json.gz) is recorded already, and turned into a trace.
    """
    path = Path(file)
    if not path.parent.is_dir():
        raise click.UsageError(f"there is no folder {str(path.parent)!r} to write the trace to")
    _check_rank(shapes, world_size, rank)
    if shapes and (target in models.KNOWN or target.endswith((".json", ".json.gz"))):
        raise click.UsageError(f"--shapes is for scripts, and {target!r} is none")
    if target.endswith((".json", ".json.gz")):
        if batch is not None or step is not None or go_on or args:
            raise click.UsageError(
                "--batch, --step, --go-on and arguments are not for an execution trace: it is recorded"
            )
        if kineto is not None and device is not None:
            raise click.UsageError("costs are measured (--kineto) or modelled (--device), not both")
        return lambda: _trace_execution(target, kineto, device, path)
    if kineto is not None:
        raise click.UsageError(f"--kineto is for execution traces (.json, .json.gz), and {target!r} is none")
    if target in models.KNOWN:
        if step is not None or go_on or args:
            raise click.UsageError("--step, --go-on and arguments are for scripts; a network has one step")
        try:
            model = load(device or "a100")
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return lambda: _trace_network(target, batch, model, path)
    if batch is not None or (device is not None and not shapes):
        raise click.UsageError(
            f"--batch and --device are for networks, and {target!r} is none of them: {', '.join(models.KNOWN)}. "
            "Tip: --shapes --device for a script"
        )
    if shapes and go_on:
        raise click.UsageError("--go-on is for scripts that run; with --shapes nothing is computed")
    try:
        source = Path(target).read_bytes()
    except OSError as error:
        if target.endswith(".py"):
            raise click.UsageError(f"cannot read the script {target!r}: {error.strerror}") from error
        raise click.UsageError(
            f"there is no network and no script {target!r}; the networks are {', '.join(models.KNOWN)}"
        ) from error
    if not shapes:
        return lambda: _trace_script(target, source, list(args), step or 3, go_on, _of_rank(path))
    try:
        model = load(device or "a100")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if world_size is not None and world_size > 1 and model.interconnect is None:
        raise click.UsageError(
            f"the device {model.name!r} does not say how fast ranks exchange bytes. Tip: a table [interconnect] with "
            "bandwidth, in a file of your own"
        )
    return lambda: _trace_shapes(target, source, list(args), step or 3, model, rank or 0, world_size, path)


def _check_rank(shapes: bool, world_size: int | None, rank: int | None) -> None:
    if world_size is not None and not shapes:
        raise click.UsageError("--world-size is for --shapes. Tip: torchrun -m coop trace records ranks that run")
    if rank is not None and world_size is None:
        raise click.UsageError("--rank needs --world-size: one rank of how many?")
    if rank is not None and world_size is not None and rank >= world_size:
        raise click.UsageError(f"there is no rank {rank} among {world_size}: they are 0 to {world_size - 1}")


def _of_rank(path: Path) -> Path:
    """The file of this rank, if torchrun has started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return path
    return path.with_name(f"{path.stem}.rank{os.environ.get('RANK', '0')}{path.suffix}")


def _trace_network(name: str, batch: int | None, device: Device, path: Path) -> None:
    with Console(stderr=True).status(name) as status:
        try:
            found = shape_trace(models.get(name), batch, device, status.update)
        except (ValueError, RuntimeError) as error:
            refuse(f"cannot trace {name} with a batch of {batch or 'the usual size'}: {str(error).splitlines()[0]}")
    _keep(found, path)


def _trace_execution(recorded: str, kineto: str | None, device: str | None, path: Path) -> None:
    with refusing(ValueError):
        found = execution.read(recorded, kineto, None if device is None else load(device))
    _keep(found, path)


def _trace_script(script: str, source: bytes, args: list[str], step: int, go_on: bool, path: Path) -> None:
    def recorded(found: Trace) -> None:
        _keep(found, path)
        if not go_on:
            sys.exit()

    recorder = ScriptRecorder(step, recorded)
    code: str | int | None = None
    try:
        recorder.run(script, source, args)
    except SystemExit as end:
        code = end.code
    if not recorder.done and not code:
        made = "no step" if not recorder.steps else f"{recorder.steps} step{'s' if recorder.steps > 1 else ''}"
        tip = f" Tip: --step {recorder.steps}." if recorder.steps else " Tip: a step ends with optimizer.step()."
        refuse(f"{script} ended after {made} of an optimizer, and step {step} was asked for.{tip}")
    raise SystemExit(code)


def _trace_shapes(
    script: str,
    source: bytes,
    args: list[str],
    step: int,
    device: Device,
    rank: int,
    world_size: int | None,
    path: Path,
) -> None:
    with refusing(NeedsValues):
        found = trace_shapes(script, source, args, device=device, step=step, rank=rank, world_size=world_size)
    if found is None:
        refuse(f"{script} ended before step {step} of an optimizer. Tip: --step, for an earlier one")
    if asked := found.about.get("values_asked"):
        print(
            f"coop: {script} asked for {asked} values (as loss.item() does), which tensors without bytes do not have; it "
            "got 1 for a number and False for a truth value",
            file=sys.stderr,
        )
    _keep(found, path)


def _keep(found: Trace, path: Path) -> None:
    try:
        write(found, path)
    except OSError as error:
        refuse(f"cannot write the trace {str(path)!r}: {error.strerror}")
    first = takewhile(lambda i: isinstance(i, Source), found.instructions)
    sources = sum(source.bytes for source in first if isinstance(source, Source))
    table = Table(box=box.ROUNDED, title=f"{found.name} -> {path}", show_header=False)
    if "world_size" in found.about:
        table.add_row("rank", f"{found.about['rank']} of {found.about['world_size']}")
    table.add_row("ops", f"{sum(1 for _ in found.ops):,}")
    table.add_row("peak", format_bytes(peak_bytes(found, found.alignment)))
    table.add_row("sources", format_bytes(sources))
    table.add_row("time in ops", f"{found.cost / 1e6:,.1f} ms ({found.device})")
    table.add_row("file", format_bytes(path.stat().st_size))
    Console(stderr=True).print(table)
