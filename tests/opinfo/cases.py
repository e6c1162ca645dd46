"""What the sweep runs: one operator, module or optimizer, in one dtype and one form. A case has a
key, as `op/nn.functional.conv2d/float32/function`."""

import dataclasses
from collections.abc import Iterable

import torch


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    """op, module or optimizer."""
    name: str
    dtype: str
    form: str
    """How it is called; each kind has its own."""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}/{self.dtype}/{self.form}"

    @staticmethod
    def of(key: str) -> "Case":
        kind, name, dtype, form = key.split("/")
        return Case(kind, name, dtype, form)


def chosen_dtypes(supported: Iterable[torch.dtype]) -> list[torch.dtype]:
    """float32, float64, one of the halves, complex64 and int64, as far as they are supported; never
    none."""
    known = set(supported)
    half = torch.bfloat16 if torch.bfloat16 in known else torch.float16
    wanted = (torch.float32, torch.float64, half, torch.complex64, torch.int64)
    return [dtype for dtype in wanted if dtype in known] or sorted(known, key=str)[:1]
