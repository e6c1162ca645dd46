"""Each part of a storage is written by one class: others read it (csrc/engine/storage.h)."""

import re
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[1] / "csrc"

OWNERS = {
    r"\bblock": {"blocks"},
    r"\bprice\.\w+": {"cost"},
    r"\bcopy\.\w+": {"transfers"},
    r"\boutlook\.\w+": {"forecast", "history"},
    r"\breview\.\w+": {"orphans", "trails"},
    r"\bplan_value": {"follower"},
    r"\b(?:producer|consumers|uses|output|versions|id)": {"lineage"},
    r"\bheld": {"engine", "retire", "walk"},
    r"\bforeign": {"engine", "retire"},
    r"\bdigest": {"blocks", "lineage"},
    r"\bclaims\.charged": {"ledger"},
    r"\bclaims\.exposed": {"engine"},
}
"""What is written, and in which files. A storage is met as `storage` or `old`, or by its role."""

VARIABLE = r"\b(?:storage|old|input|output|source|last|to|from|target|dependent)(?:->|\.)"
ASSIGNED = r"\s*(?:=(?!=)|\+=|-=|\+\+|--)"


def writes(part: str, text: str) -> list[str]:
    found = re.findall(rf"{VARIABLE}{part}{ASSIGNED}.*", text)
    found += re.findall(rf"(?:\+\+|--){VARIABLE}{part}\b.*", text)
    found += re.findall(rf"std::exchange\({VARIABLE}{part}\b.*", text)
    return found


@pytest.mark.parametrize("part", OWNERS)
def test_only_its_owner_writes_a_part_of_a_storage(part: str) -> None:
    strangers = {}
    seen = 0
    for path in sorted([*ENGINE.glob("*/*.cpp"), *ENGINE.glob("*/*.h")]):
        if path.parent.name == "simulate" and path.stem != "player":
            continue  # the ideal simulator has storages of its own
        found = writes(part, path.read_text())
        seen += len(found)
        if found and path.stem not in OWNERS[part]:
            strangers[path.name] = found
    assert seen, f"nobody writes {part}: has it another name now?"
    assert not strangers
