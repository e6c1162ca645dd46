"""Writes the parts of the Python surface that follow from lists in the engine's headers.

    python tools/surface.py            writes what is out of date
    python tools/surface.py --check    only says what is, with exit code 1

The engine has one list each of its events, figures and options: an X-macro, with a name and a
sentence in each line. From these lists come

    src/coop/surface.py     EVENT_KINDS, OPTIONS, and the fields of coop.Stats
    src/coop/_C.pyi         the class Options
    docs/event-format.md    the table of the kinds of events

The last two have the generated part between two marks. It needs nothing but Python.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).parents[1]
ENGINE = HOME / "csrc" / "engine"
WIDTH = 100
_TYPES = {"Bytes": "int", "std::uint64_t": "int", "std::uint32_t": "int", "int": "int"}
_TYPES |= {"Seconds": "float", "double": "float", "bool": "bool"}
_TYPES |= {name: name for name in ("Placement", "CostModel")}
_TYPES["std::string"] = "str"


class SurfaceError(ValueError):
    """A header has no such list, or something in it is not understood."""


class Kind(NamedTuple):
    """A kind of event."""

    name: str
    meaning: str


class Field(NamedTuple):
    """A figure or an option, with its type and default as Python writes them."""

    name: str
    type: str
    default: str
    meaning: str


# --- reading ------------------------------------------------------------------------------------


def kinds() -> list[Kind]:
    return [Kind(name, text(meaning)) for name, meaning in _entries("events.h", "COOP_EVENTS", 2)]


def figures() -> list[Field]:
    return list(_fields("stats.h", "COOP_STATS"))


def options() -> list[Field]:
    return list(_fields("options.h", "COOP_OPTIONS"))


def _fields(header: str, macro: str) -> Iterator[Field]:
    for name, kind, default, meaning in _entries(header, macro, 4):
        if kind not in _TYPES:
            raise SurfaceError(f"{header}: {name} has a type that Python does not know: {kind}")
        yield Field(name, _TYPES[kind], value(default, _TYPES[kind]), text(meaning))


def _entries(header: str, macro: str, count: int) -> list[list[str]]:
    path = ENGINE / header
    found = entries(path.read_text(), macro)
    for entry in found:
        if len(entry) != count:
            raise SurfaceError(f"{path}: an entry of {macro} has {len(entry)} parts: {entry}")
    return found


def entries(source: str, macro: str) -> list[list[str]]:
    """The arguments of each X(...) in the list, as C++ writes them."""
    found = re.search(rf"^#define {macro}\(X\)((?:.*\\\n)*.*)", source, re.MULTILINE)
    if found is None:
        raise SurfaceError(f"there is no list {macro}(X)")
    body = found[1].replace("\\\n", "\n")
    entry: list[str] = []
    made, depth = [], 0
    for token in re.findall(r'"(?:[^"\\]|\\.)*"|\s+|[(),]|[^"\s(),]+', body):
        if token == "(":
            depth += 1
            if depth == 1:
                entry = [""]
                continue
        elif token == ")":
            depth -= 1
            if depth == 0:
                made.append([part.strip() for part in entry])
                continue
        elif token == "," and depth == 1:
            entry.append("")
            continue
        if depth:
            entry[-1] += token
        elif token.strip() not in ("", "X"):
            raise SurfaceError(f"{macro}: {token!r} is no entry")
    return made


def text(literals: str) -> str:
    """C++'s string literals, which may be several in a row."""
    return "".join(json.loads(literal) for literal in re.findall(r'"(?:[^"\\]|\\.)*"', literals))


def value(written: str, kind: str) -> str:
    """A default, as Python writes it."""
    if kind == "bool" and written in ("true", "false"):
        return written.capitalize()
    if shift := re.fullmatch(r"(\d+)u? << (\d+)", written):
        return str(int(shift[1]) << int(shift[2]))
    if kind == "int" and re.fullmatch(r"-?\d+", written):
        return written
    if kind == "float" and re.fullmatch(r"-?\d+(\.\d+)?(e\d+)?", written):
        return repr(float(written))
    if kind == "str" and written.startswith('"'):
        return written
    if re.fullmatch(rf"{kind}::\w+", written):
        return written.replace("::", ".")
    raise SurfaceError(f"{written!r} is no default of type {kind} that is understood")


# --- writing ------------------------------------------------------------------------------------


def surface() -> str:
    lines = [
        '"""What the engine lists in its headers: kinds of events, options, figures.',
        "",
        "Made by tools/surface.py. Not to be edited: the lists are in csrc/engine.",
        '"""',
        "",
        "import dataclasses",
        "",
        "# fmt: off",
        "",
    ]
    lines += _dictionary("EVENT_KINDS", "The kinds of events, and what they mean.", kinds())
    lines += _dictionary("OPTIONS", "The engine's options, and what they do.", options())
    lines += ["", "@dataclasses.dataclass(frozen=True)", "class StatsFields:"]
    lines += ['    """The engine\'s figures. Bytes are ints, times are seconds."""', ""]
    for field in figures():
        lines += [f"    {field.name}: {field.type} = {field.default}", *_doc(field.meaning, "    ")]
    return "\n".join(lines) + "\n"


def stub() -> str:
    lines = ["class Options:"]
    for field in options():
        end = f" Default: {field.default}."
        lines += [f"    {field.name}: {field.type}", *_doc(field.meaning + end, "    ")]
    return "\n".join([*lines, "    def __init__(self) -> None: ..."]) + "\n"


def table() -> str:
    lines = ["| kind | meaning |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{kind.name}` | {kind.meaning} |" for kind in kinds())]) + "\n"


def _dictionary(name: str, doc: str, items: Iterable[Kind | Field]) -> list[str]:
    lines = [f"{name}: dict[str, str] = {{"]
    for item in items:
        whole = f'    "{item.name}": {json.dumps(item.meaning, ensure_ascii=False)},'
        if len(whole) <= WIDTH:
            lines.append(whole)
            continue
        parts = _wrapped(item.meaning, WIDTH - 12)
        quoted = [json.dumps(part, ensure_ascii=False) for part in parts]
        lines += [f'    "{item.name}": (', *(f"        {part}" for part in quoted), "    ),"]
    return [*lines, "}", f'"""{doc}"""', ""]


def _doc(sentence: str, indent: str) -> list[str]:
    if len(indent) + len(sentence) + 6 <= WIDTH:
        return [f'{indent}"""{sentence}"""']
    first, *rest = (part.strip() for part in _wrapped(sentence, WIDTH - len(indent) - 6))
    rest[-1] += '"""'
    return [f'{indent}"""{first}', *(f"{indent}{part}" for part in rest)]


def _wrapped(sentence: str, width: int) -> list[str]:
    """Pieces that give the sentence when they are joined."""
    pieces = [""]
    for word in re.findall(r"\S+\s*", sentence):
        if len(pieces[-1]) + len(word) > width:
            pieces.append("")
        pieces[-1] += word
    return pieces


def between_marks(path: Path, begin: str, end: str, content: str) -> str:
    whole = path.read_text()
    before, found, rest = whole.partition(begin + "\n")
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SurfaceError(f"{path} has no marks {begin!r} and {end!r}")
    return before + begin + "\n" + content + end + after


PARTS: dict[Path, Callable[[Path], str]] = {
    HOME / "src" / "coop" / "surface.py": lambda path: surface(),
    HOME / "src" / "coop" / "_C.pyi": lambda path: between_marks(
        path, "# --- made by tools/surface.py", "# --- made by hand", stub() + "\n"
    ),
    HOME / "docs" / "event-format.md": lambda path: between_marks(
        path, "<!-- made by tools/surface.py -->", "<!-- made by hand -->", "\n" + table() + "\n"
    ),
}
"""The files, and what should be in them."""


def out_of_date() -> dict[Path, str]:
    wanted = {path: make(path) for path, make in PARTS.items()}
    return {path: new for path, new in wanted.items() if not path.exists() or path.read_text() != new}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    checking = parser.parse_args().check
    found = out_of_date()
    for path, content in found.items():
        if not checking:
            path.write_text(content)
        print(f"{'out of date' if checking else 'written'}: {path.relative_to(HOME)}")
    return 1 if found and checking else 0


if __name__ == "__main__":
    sys.exit(main())
