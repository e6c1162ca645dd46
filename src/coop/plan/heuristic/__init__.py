"""Planners that call no solver: published schedules, and replays in a budget."""
