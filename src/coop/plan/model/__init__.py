"""What planners work with: the graph of a step, schedules and plans of it, the checker, plan
files."""
