"""The cases whose bits cannot be compared, with the reason, which always lies in plain PyTorch: two
plain runs differ too.

They still run, and must neither break nor crash.
"""

import dataclasses

from opinfo.cases import Case

UNSET = "returns bytes that nothing has set"
ATOMIC = "not deterministic in plain PyTorch: threads add float32 numbers to one place in any order"
RACE = "not deterministic in plain PyTorch: threads write different values to one place in any order"
PIVOTS = "not deterministic in plain PyTorch: its default driver gives LAPACK pivots that nothing has set"


@dataclasses.dataclass(frozen=True)
class Known:
    kind: str
    name: str
    reason: str
    dtypes: tuple[str, ...] = ()
    """Empty: all of them."""
    forms: tuple[str, ...] = ()

    def covers(self, case: Case) -> bool:
        return (
            (self.kind, self.name) == (case.kind, case.name)
            and (not self.dtypes or case.dtype in self.dtypes)
            and (not self.forms or case.form in self.forms)
        )


KNOWN = [
    *(
        Known("op", name, UNSET)
        for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
    ),
    Known("op", "linalg.lstsq", PIVOTS),
    Known("op", "linalg.lstsq.grad_oriented", PIVOTS),
    Known("crowded", "lstsq", PIVOTS),
    Known("op", "_unsafe_masked_index_put_accumulate", ATOMIC, ("float32",), ("large",)),
    # Taking by an index is an addition by index on the way back.
    *(
        Known("crowded", name, ATOMIC, ("float32",))
        for name in ("index_put accumulate", "index_put_ accumulate", "index_put rows", "_unsafe_index_put",
                     "put accumulate", "index", "index rows", "take")
    ),
    *(Known("crowded", name, RACE) for name in ("index_put", "put", "index_copy", "index_copy rows")),
]  # fmt: skip


def reason(case: Case) -> str | None:
    return next((known.reason for known in KNOWN if known.covers(case)), None)
