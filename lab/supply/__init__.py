"""What the project takes from others, and how that is known: lock files, wheelhouse, bill.

``requirements/*.txt`` pin each package that is installed, with the SHA-256 of each of its wheels.
`locking` writes them (``./run lock``), `locked` reads them. `wheelhouse` makes what an operator
installs (``./run package``) and `bill` lists what is in it, as a CycloneDX document.
`own_venv` makes environments beside the project's.

Nothing is installed by a version range, and no code of a dependency runs while it is installed:
wheels alone are taken.
"""
