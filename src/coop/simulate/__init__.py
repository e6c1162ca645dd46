"""Simulating a step in less memory than it needs: on the engine that trains, and without
addresses, as DTR's authors did."""

from coop.simulate.ideal import Ideal, ideal
from coop.simulate.player import Player, Simulation, simulate

__all__ = ["Ideal", "Player", "Simulation", "ideal", "simulate"]
