"""What coop raises beyond Python's own exceptions."""

from typing import Any

import torch

from coop import _C
from coop.distributed.out_of_step import ran_out
from coop.distributed.place import place_now
from coop.outlook import program_needs
from coop.sizes import format_bytes


class OutOfBudget(torch.OutOfMemoryError):
    """There is no room for an op, even after evicting everything that can leave.

    The text names the op, the bytes that it needs in one piece, the largest run that could be
    freed, what cannot leave and why, and two budgets. The program may catch the exception and go
    on, for example with a smaller batch. Of several ranks, all have to do that: see `coop.agree`.
    """

    op: str = ""
    needed: int = 0
    """Bytes that the op requested in one piece when it failed."""
    budget: int = 0
    enough: int = 0
    """A budget that is enough for this op, by the engine's own bookkeeping."""
    whole: bool = False
    """True: `enough` was measured by running the whole op beyond the budget and dropping its
    results. False: it covers only the part of the op that has run."""
    program: int = 0
    """An estimate of what the whole program needs: gradients and an optimizer's state may still be
    missing."""
    rank: int | None = None
    """The rank that ran out. None: there is only one process."""

    def __init__(self, text: str = "", op: str = "", **numbers: Any) -> None:
        if numbers:
            self.op = op
            self.needed, self.budget, self.enough = numbers["needed"], numbers["budget"], numbers["enough"]
            self.whole = numbers["whole"]
            self.program = max(self.enough, program_needs(numbers))
            place = place_now()
            self.rank = place.rank if place else None
            named = f"{place}: " if place else ""
            text = f"{named}{text}{_reason(op, numbers)} Tip: {self._tip()}; a smaller batch needs less."
            ran_out(op)
        super().__init__(text)

    def _tip(self) -> str:
        serves = "serves this op" if self.whole else "serves this op as far as it has come"
        tip = f"a budget of {self.enough} bytes ({format_bytes(self.enough)}) {serves}"
        if self.program == self.enough:
            return tip
        return f"{tip}, and about {format_bytes(self.program)} the whole program, as far as can be told now"


def _reason(op: str, numbers: dict[str, Any]) -> str:
    """Optimizers that update all parameters with one op need all of them at once."""
    name = op.removeprefix("aten::")
    if not name.startswith(("_foreach_", "_fused_")) or numbers["operands"] < 2:
        return ""
    return (
        f" This op reads {numbers['operands']} tensors at once, {format_bytes(numbers['read'])} in all; an optimizer with "
        "foreach=False and fused=False takes one parameter after the other."
    )


_C.set_exception(OutOfBudget)
