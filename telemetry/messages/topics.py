"""The topics of the control fabric. ``docs/reference/topics.md`` has the same table for people.

A host writes below ``{prefix}/host/{host}/`` and reads its own orders; the broker's access list
enforces both, so that a host speaks for itself only. The payload's ``source`` has to agree with
the topic.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

DEFAULT_PREFIX = "fabric/v1"
_NAMED = frozenset({"host.job", "compute.order", "compute.job", "compute.view"})
"""Kinds whose topics end with a name."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")


class Kind(enum.Enum):
    """What a topic carries; the value is the message type without ``io.fabricd.`` and version."""

    HOST_STATUS = "host.status"
    HOST_DOCUMENT = "host.document"
    HOST_OBSERVATIONS = "host.observations"
    HOST_JOB = "host.job"
    HOST_EVENT = "host.event"
    COMPUTE_STATUS = "compute.status"
    COMPUTE_ORDER = "compute.order"
    COMPUTE_JOB = "compute.job"
    COMPUTE_VIEW = "compute.view"
    COMPUTE_LEDGER = "compute.ledger"
    STOP = "stop"

    @property
    def message_type(self) -> str:
        """The ``type`` of the CloudEvents on such a topic."""
        return f"io.fabricd.{self.value}.v1"

    @property
    def retained(self) -> bool:
        """The broker keeps the newest message of such a topic."""
        return self is not Kind.HOST_EVENT


@dataclass(frozen=True)
class Topic:
    """One topic. ``owner`` is the host or fabric-compute that writes it; ``""``: an operator.

    ``name`` is the job of HOST_JOB and COMPUTE_JOB, and the addressed host of COMPUTE_ORDER and
    COMPUTE_VIEW.
    """

    kind: Kind
    owner: str = ""
    name: str = ""

    @property
    def source(self) -> str:
        """The ``source`` of the CloudEvents on this topic."""
        return f"/{self.kind.value.partition('.')[0]}/{self.owner}" if self.owner else "/operator"

    def text(self, prefix: str = DEFAULT_PREFIX) -> str:
        """The topic's name at the broker."""
        levels = [prefix, *self.kind.value.split(".")]
        if self.kind is not Kind.STOP:
            levels.insert(2, self.owner)
        return "/".join([*levels, self.name] if self.name else levels)


def parse(text: str, prefix: str = DEFAULT_PREFIX) -> Topic | None:
    """The topic of that name; None when it is none of ours."""
    if not text.startswith(f"{prefix}/"):
        return None
    levels = text[len(prefix) + 1 :].split("/")
    if levels == ["stop"]:
        return Topic(Kind.STOP)
    if len(levels) not in (3, 4) or any(_NAME.match(name) is None for name in levels[1:]):
        return None
    try:
        kind = Kind(f"{levels[0]}.{levels[2]}")
    except ValueError:
        return None
    named = kind.value in _NAMED
    if named != (len(levels) == 4):
        return None
    return Topic(kind, levels[1], levels[3] if named else "")


def subscription(kind: Kind, prefix: str = DEFAULT_PREFIX, name: str = "+") -> str:
    """The filter for all topics of ``kind``; of orders and views, those to host ``name``."""
    if kind is Kind.STOP:
        return f"{prefix}/stop"
    side, _, what = kind.value.partition(".")
    named = kind.value in _NAMED
    return f"{prefix}/{side}/+/{what}" + (f"/{name}" if named else "")
