"""Structured logs on stderr: logfmt or JSON, with the priority prefix that journald reads."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from telemetry.service.shown import shown

# sd-daemon(3): a line may begin with its syslog priority in angle brackets.
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2, "exception": 3}


class _Stderr:
    """Prints lines; a stderr that is gone must not take the daemon with it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _print(self, message: str) -> None:
        try:
            self._stream.write(message + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return

    msg = log = debug = info = warning = error = critical = exception = _print


def _prefix(_logger: object, name: str, text: str) -> str:
    return f"<{_PRIORITY.get(name, 6)}>{text}"


def _harmless(_logger: object, _name: str, row: MutableMapping[str, Any]) -> dict[str, Any]:
    """No value acts on a terminal, or makes journald hide its line as a blob."""
    return {
        key: value if value is None or isinstance(value, bool | int | float) else shown(str(value))
        for key, value in row.items()
    }


def setup(*, style: str = "auto", level: str = "info") -> None:
    """Configure structlog for the process.

    Args:
        style: logfmt, json, or auto (logfmt; times are left to journald when it listens).
        level: debug, info, warning or error.
    """
    journald = bool(os.environ.get("JOURNAL_STREAM"))
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    if not journald:
        processors.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
    if style == "json":
        processors.append(structlog.processors.JSONRenderer())
    else:
        processors.append(_harmless)
        order = ["timestamp", "level", "event"]
        processors.append(structlog.processors.LogfmtRenderer(key_order=order, drop_missing=True))
    if journald:
        processors.append(_prefix)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=lambda *_: _Stderr(sys.stderr),
        cache_logger_on_first_use=True,
    )
