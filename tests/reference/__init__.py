"""The engine once more, in plain Python and slowly: what has to happen, and what may."""

from reference.play import enough, play
from reference.told import RefereeError

__all__ = ["RefereeError", "enough", "play"]
