"""Prose has lines of at most 100 columns: comments, docstrings, and Markdown.

Code may be wider. So may tables, code blocks, rulers, and lines with links or pictures.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).parents[1]
WIDTH = 100
FOLDERS = ("src", "csrc", "tests", "benchmarks", "tools", "examples", "docs")

BEGINS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
"""What stands before a statement: a string that follows is a docstring."""
WIDE = re.compile(r"-----|=====|https?://|\]\(|^\s*\||^\s*(//|#)\s*\||^<")
"""Rulers, links, tables."""


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    before = tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first, column = token.start
        if token.type == tokenize.COMMENT and not lines[first - 1][:column].strip():
            yield first, lines[first - 1]
        if token.type == tokenize.STRING and before in BEGINS:
            for number in range(first, token.end[0] + 1):
                line = lines[number - 1]
                if not line.startswith(" " * (column + 4)):  # else a code block
                    yield number, line
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type


def prose_of_cpp(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("//"):
            yield number, line


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        if not code and not fence:
            yield number, line


READERS = {
    ".py": prose_of_python,
    ".pyi": prose_of_python,
    ".h": prose_of_cpp,
    ".cpp": prose_of_cpp,
    ".md": prose_of_markdown,
}


def too_wide(path: Path) -> list[int]:
    prose = READERS[path.suffix](path.read_text())
    return [number for number, line in prose if len(line) > WIDTH and not WIDE.search(line)]


def files() -> list[str]:
    found = [path for folder in FOLDERS for path in (HOME / folder).rglob("*") if path.suffix in READERS]
    return sorted(str(path.relative_to(HOME)) for path in [*found, *HOME.glob("*.md")])


def test_prose_has_lines_of_at_most_100_columns():
    wide = [f"{name}:{number}" for name in files() for number in too_wide(HOME / name)]
    assert not wide, f"{len(wide)} lines of prose have more than {WIDTH} columns: {' '.join(wide)}"
