"""Simulating a step in less memory than it needs, on the engine that trains."""

from coop.simulate.player import Player, Simulation, simulate

__all__ = ["Player", "Simulation", "simulate"]
