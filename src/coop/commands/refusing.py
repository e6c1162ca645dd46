"""From an error to a refusal: one sentence, exit code 2."""

import contextlib
from collections.abc import Iterator

from coop.commands import refuse


@contextlib.contextmanager
def refusing(*errors: type[Exception]) -> Iterator[None]:
    """Turns errors whose texts are written for users into refusals. OSError always, with the
    file's name."""
    try:
        yield
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except errors as error:
        refuse(" ".join(str(error).split()))
