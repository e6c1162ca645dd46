"""A second engine in slow, plain Python. It checks what the engine must do, and what it may do."""

from reference.event_stream import RefereeError
from reference.play import enough, play

__all__ = ["RefereeError", "enough", "play"]
