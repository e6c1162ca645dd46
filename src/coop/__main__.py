"""`python -m coop`: the same as the command `coop`."""

from coop.cli import main

if __name__ == "__main__":
    main()
