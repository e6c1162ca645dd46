"""The search for a plan: what a planner is given, and the methods that `auto` combines."""
