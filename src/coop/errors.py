"""What coop raises beyond Python's own exceptions."""

import torch

from coop import _C


class OutOfBudget(torch.OutOfMemoryError):
    """There is no room for an op, even after evicting everything that can leave.

    The text names the op, what it needs in one piece, the largest run that could be freed, what cannot leave and why,
    and the smallest budget that would have served. The program may catch it and go on, with a smaller batch for
    instance.
    """


_C.set_exception(OutOfBudget)
