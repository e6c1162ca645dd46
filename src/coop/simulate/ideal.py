"""The ideal simulator: it counts bytes, without addresses, by the rules of DTR's own simulator
(csrc/simulate/ideal.h).

It differs from the engine so that its figures can be compared with published ones: no
fragmentation, eager eviction, copy on write for in-place ops, every op can run twice, and the clock
starts at 1.
"""

from dataclasses import dataclass
from math import isfinite

from coop import _C
from coop.trace.dtr_log import end_order
from coop.trace.trace import FRESH, Hold, Op, Source, Trace

POLICIES = ("dtr", "dtr-eq", "dtr-local", "msps", "lru")
_LARGEST = 2**60


@dataclass(frozen=True, slots=True)
class Ideal:
    status: str
    """ok, out_of_memory or thrash. In the last two cases the figures are those when the run
    ended."""
    overhead: float
    """Time, divided by the time without a limit."""
    budget: int
    peak: int
    evictions: int
    """Storages that left to make room."""
    rematerialisations: int
    """Storages that were brought back."""
    baseline_peak: int
    baseline_cost: int


def ideal(trace: Trace, budget: int | float, policy: str = "dtr", limit: float = 2.0) -> Ideal:
    """Plays one step. The budget is in bytes, or a share of the step's own peak if it is a float.

    Recomputing for longer than `limit` - 1 times the step's own time is thrashing.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; the ideal simulator knows {', '.join(POLICIES)}")
    if isinstance(budget, bool) or not 0 <= budget <= _LARGEST or not isfinite(budget):
        raise ValueError(f"a budget is a number of bytes, or a share of the peak, not {budget!r}")
    code, last = encode(trace)
    return Ideal(**_C.ideal(code, last, budget, policy, limit))


def encode(trace: Trace) -> tuple[list[int], list[int]]:
    """The trace as numbers: see Program in csrc/simulate/ideal.h."""
    code: list[int] = []
    sizes: list[int] = []  # of each tensor's storage
    for instruction in trace.instructions:
        if isinstance(instruction, Source):
            code += (0, instruction.bytes)
            sizes.append(instruction.bytes)
        elif isinstance(instruction, Op):
            inputs, outputs = instruction.inputs, instruction.outputs
            code += (1, instruction.cost, instruction.scratch, len(inputs), len(outputs), *inputs)
            for output in outputs:
                size = output.bytes if output.alias == FRESH else sizes[inputs[output.alias]]
                sizes.append(size)
                fresh = output.alias in instruction.writes  # copy on write
                code += (size, FRESH if fresh else output.alias)
        else:
            code += (2 if isinstance(instruction, Hold) else 3, instruction.tensor)
    if trace.cost > _LARGEST or sum(sizes) > _LARGEST:
        raise ValueError("the trace's times or sizes are too large to be added up")
    return code, end_order(trace)
