"""Markdown pages that scripts write: prose in lines of at most 100 columns, as people write it."""

import textwrap

WIDTH = 100


def wrapped(page: str) -> str:
    """Wraps long lines of prose. Tables, headings, pictures and code stay as they are."""
    lines: list[str] = []
    code = False
    for line in page.split("\n"):
        code ^= line.startswith("```")
        if code or len(line) <= WIDTH or line.startswith(("|", "#", "!", "<", "```")):
            lines.append(line)
            continue
        indent = "  " if line.startswith("- ") else ""
        lines += textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)
