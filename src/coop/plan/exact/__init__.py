"""Planners that solve a mathematical program, and the solvers that they call."""
