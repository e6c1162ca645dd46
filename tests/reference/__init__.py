"""The engine once more, in plain Python and slowly: what each policy has to do, event by event."""

from reference.play import play

__all__ = ["play"]
