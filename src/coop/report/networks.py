"""From the name of a network to the file with its step."""

import os
from collections.abc import Callable
from pathlib import Path

from coop import models
from coop.trace import device as devices
from coop.trace import shapes, write

SUFFIX = ".trace"


def traces_of(names: str, folder: Path | None, make: Callable[[str], Path]) -> dict[str, Path]:
    """The networks of a list such as `all` or `bert-large,unet` or `my.trace,unet`, in that order.

    A name is looked up as a file, then in the folder if there is one, then in coop.models, for
    which `make` makes the trace.
    """
    traces: dict[str, Path] = {}
    for name in _all(folder) if names == "all" else names.split(","):
        file = Path(name)
        if file.suffix and file.is_file():
            traces[file.name.removesuffix(SUFFIX)] = file
        elif folder is None:
            traces[name] = make(name)
        elif (file := folder / f"{name}{SUFFIX}").is_file():
            traces[name] = file
        else:
            there = ", ".join(_all(folder))
            raise ValueError(f"unknown network {name!r}: there is no {file}; the known ones are {there}")
    return traces


def trace_of(name: str, folder: Path, device: str, progress: Callable[[str], None]) -> Path:
    """Traces a network of coop.models by shapes alone, unless the folder has its trace from an
    earlier run."""
    if name not in models.KNOWN:
        raise ValueError(f"there is no network and no file {name!r}; the known networks are {', '.join(models.KNOWN)}")
    file = folder / f"{name}{SUFFIX}"
    if not file.is_file():
        made = shapes.shape_trace(models.get(name), None, devices.load(device), progress)
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        write(made, part)
        os.replace(part, file)
    return file


def _all(folder: Path | None) -> list[str]:
    if folder is None:
        return list(models.NAMES)
    names = sorted(file.name.removesuffix(SUFFIX) for file in folder.glob(f"*{SUFFIX}"))
    if not names:
        raise ValueError(f"there are no traces (*{SUFFIX}) in {folder}")
    return names
