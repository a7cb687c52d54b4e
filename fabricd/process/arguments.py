"""What the command lines of the host's services share."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(prog: str, description: str, options: str = "") -> argparse.ArgumentParser:
    """A parser that knows ``--config`` and ``--log-format``; ``options``: more, for the example."""
    made = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"example: {prog} --config /etc/fabricd/fabricd.toml{options}",
    )
    made.add_argument("--config", type=Path, default=Path("/etc/fabricd/fabricd.toml"))
    made.add_argument("--log-format", choices=("auto", "logfmt", "json"), default="auto")
    return made
