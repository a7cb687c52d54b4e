"""What systemd is told (sd_notify(3)); nothing when it does not listen."""

from __future__ import annotations

import time

import sdnotify


class Notifier:
    """READY, RELOADING, STOPPING and the watchdog."""

    def __init__(self) -> None:
        self._notifier = sdnotify.SystemdNotifier()

    def ready(self, status: str) -> None:
        """Started, or reloaded."""
        self._say("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it. systemd 253 wants the time, 252 ignores it."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """A graceful stop begins."""
        self._say("STOPPING=1")

    def watchdog(self) -> None:
        """One full cycle was done."""
        self._say("WATCHDOG=1")

    def _say(self, *lines: str) -> None:
        self._notifier.notify("\n".join(lines))
