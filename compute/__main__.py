"""``python -m compute``: the same as ``fabric-compute``."""

from __future__ import annotations

from compute.cli import main

if __name__ == "__main__":
    main()
