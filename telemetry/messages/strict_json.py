"""JSON as RFC 8259 has it: what is read here can be written again, and read by others."""

from __future__ import annotations

import json
import math
from typing import Any


def load_object(text: bytes) -> dict[str, Any]:
    """The object that ``text`` is. Raises ``ValueError``, which says what is wrong.

    Numbers are finite: Python would read NaN, Infinity and 1e999. What is nested too deeply for
    the reader is refused, too.
    """
    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text:.40} is out of range")
    return value
