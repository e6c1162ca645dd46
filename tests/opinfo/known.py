"""The operators whose results cannot be compared, with the reason, which lies in plain PyTorch.

An entry is for a kind and a name, in all dtypes and forms, or only for the forms that it names.
"""

from opinfo.cases import Case

UNSET = "returns bytes that nothing has set"

KNOWN: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("op", name): (UNSET, ())
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
}


def reason(case: Case) -> str | None:
    why, forms = KNOWN.get((case.kind, case.name), ("", ()))
    return why if why and (not forms or case.form in forms) else None
