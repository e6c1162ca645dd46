"""The commands that work on traces, one for each file. cli.py puts them together."""
