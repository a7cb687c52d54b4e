"""``python -m lab.docs``: makes the generated tables of ``docs/reference`` anew."""

from lab.docs.reference import main

main()
