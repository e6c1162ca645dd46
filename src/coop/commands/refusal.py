"""Saying no: what is wrong with a command or its input, in one sentence, with exit code 2."""

import contextlib
from collections.abc import Iterator


class Refusal(Exception):
    """Raised by the work of a command. cli.main prints the sentence; no traceback follows."""


@contextlib.contextmanager
def refusing(*errors: type[Exception]) -> Iterator[None]:
    """Errors whose texts are sentences made for users become refusals. OSError always does, with the file's name."""
    try:
        yield
    except OSError as error:
        raise Refusal(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    except errors as error:
        raise Refusal(str(error)) from error
