"""All cases there are, and the programs of each."""

from collections.abc import Iterator

from opinfo.cases import Case
from opinfo.crowded import crowded_cases, crowded_programs
from opinfo.leaves import leaf_cases, leaf_programs
from opinfo.modules import module_cases, module_programs
from opinfo.operators import operator_cases, operator_programs
from opinfo.optimizers import optimizer_cases, optimizer_programs
from same import Program

_PROGRAMS = {
    "op": operator_programs,
    "crowded": crowded_programs,
    "module": module_programs,
    "optimizer": optimizer_programs,
    "leaves": leaf_programs,
}


def all_cases() -> list[Case]:
    return [*operator_cases(), *crowded_cases(), *module_cases(), *optimizer_cases(), *leaf_cases()]


def programs(case: Case) -> Iterator[Program]:
    """Each makes its own copies of what it works on, and returns all that it changed."""
    return _PROGRAMS[case.kind](case)
