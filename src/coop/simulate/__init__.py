"""Simulators of a trace."""

from coop.simulate.ideal import Ideal, ideal

__all__ = ["Ideal", "ideal"]
