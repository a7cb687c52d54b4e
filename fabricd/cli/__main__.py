"""``python -m fabricd.cli``."""

from fabricd.cli import main

main()
