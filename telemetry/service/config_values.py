"""Plain values that configurations share: their types, and what is allowed, in words."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

HOST_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$"
HostName = Annotated[
    str,
    Field(
        pattern=HOST_NAME,
        description="a host name: 1 to 253 letters, digits, '.', '-' and '_'",
    ),
]
_EVERY_MACHINE = frozenset(
    f"{name}{domain}"
    for name in ("localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")
    for domain in ("", ".localdomain", ".localdomain4", ".localdomain6")
)


def name_problem(name: str, *, written: bool = True) -> str:
    """Why no host can be known to others as ``name``, for people; "": it can.

    ``written``: it stands in the file, where its form is checked, and is not the machine's own.
    """
    if name.lower() in _EVERY_MACHINE:
        return f"{name} is what every machine calls itself; allowed: a name that no other host has"
    if not written and not re.fullmatch(HOST_NAME, name):
        return f"this machine's name, {name!r:.80}, is no host name; allowed: to name it here"
    return ""


FilePath = Annotated[
    str, Field(pattern=r"^/", max_length=4096, description="an absolute path as text")
]
Listen = Annotated[
    str,
    Field(
        pattern=r"^(|(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5})$",
        description='"HOST:PORT", "[IPv6]:PORT", or "" for no endpoint',
    ),
]
Switch = Annotated[bool, Field(strict=True, description="true or false")]


def integer(low: int, high: int, unit: str = "") -> Any:  # noqa: ANN401
    """A strict integer within bounds."""
    text = f"an integer from {low} to {high}{unit and ' ' + unit}"
    return Field(ge=low, le=high, strict=True, description=text)


def number(low: float, high: float, unit: str = "") -> Any:  # noqa: ANN401
    """A finite number within bounds."""
    return Field(
        ge=low, le=high, allow_inf_nan=False,
        description=f"a number from {low:g} to {high:g}{unit and ' ' + unit}",
    )  # fmt: skip


def _plain_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    return value


Number = Annotated[float, BeforeValidator(_plain_number)]
