"""Options that several commands have."""

import click

from coop.simulate.player import THRASH

BUDGET_HELP = "Bytes (600MiB, 4GB), or a share of the step's own peak (50%, 0.5)."

budget = click.option(
    "--budget",
    "size",
    required=True,
    metavar="SIZE",
    help=BUDGET_HELP,
)
steps = click.option("--steps", default=1, show_default=True, type=click.IntRange(1), help="Consecutive steps to play.")
limit = click.option(
    "--limit",
    default=THRASH,
    show_default=True,
    type=click.FloatRange(1.0, min_open=True),
    help="Overhead from which on a run counts as thrashing and is given up.",
)
on = click.option(
    "--on",
    "address",
    metavar="ADDRESS",
    help="Spread the work over a dask cluster: the scheduler's address (tcp://host:8786), or its file (.json).",
)
