"""From the name of a network to the file with its step."""

from pathlib import Path

SUFFIX = ".trace"


def known(folder: Path) -> list[str]:
    return sorted(file.name.removesuffix(SUFFIX) for file in folder.glob(f"*{SUFFIX}"))


def trace_of(name: str, folder: Path) -> Path:
    """The seam to coop.models: the file with that network's step. Raises ValueError with the known names."""
    file = folder / f"{name}{SUFFIX}"
    if not file.is_file():
        there = ", ".join(known(folder)) or "none"
        raise ValueError(f"unknown network {name!r}: there is no {file}; the known ones are {there}")
    return file


def traces_of(names: str, folder: Path) -> dict[str, Path]:
    """The networks of a list such as `all` or `bert-large,unet` or `my.trace,unet`, in that order."""
    traces: dict[str, Path] = {}
    for name in known(folder) if names == "all" else names.split(","):
        file = Path(name)
        if file.suffix and file.is_file():
            traces[file.name.removesuffix(SUFFIX)] = file
        else:
            traces[name] = trace_of(name, folder)
    if not traces:
        raise ValueError(f"there are no traces (*{SUFFIX}) in {folder}")
    return traces
