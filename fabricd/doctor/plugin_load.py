"""A child process: loads a network plugin as a test. Prints one JSON object.

``python -m fabricd.doctor.plugin_load PATH`` prints ``error`` (the loader's message, or empty),
``tables`` (versions of NCCL's table that it exports) and ``name``, by which NCCL knows it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

TABLES = range(2, 32)
_MAX_NAME = 64


def main() -> int:
    """Load the library that the first argument names; what it prints goes to standard error."""
    fd = os.dup(1)
    with os.fdopen(fd, "w") as out:
        os.dup2(2, 1)
        json.dump(_answer(sys.argv[1]), out)
    return 0


def _answer(path: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"error": "", "tables": [], "name": ""}
    try:
        library = ctypes.CDLL(path)
        answer["tables"] = [v for v in TABLES if hasattr(library, f"ncclNetPlugin_v{v}")]
        if answer["tables"]:
            answer["name"] = _name(library, answer["tables"][-1])
    except OSError as error:
        answer["error"] = str(error)
    return answer


def _name(library: ctypes.CDLL, version: int) -> str:
    """Each table begins with a pointer to the plugin's name."""
    text = ctypes.c_char_p.in_dll(library, f"ncclNetPlugin_v{version}").value or b""
    return text[:_MAX_NAME].decode("ascii", "replace")


if __name__ == "__main__":
    sys.exit(main())
