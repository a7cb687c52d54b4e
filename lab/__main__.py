"""``python -m lab``: the command line."""

from lab.cli import main

main()
