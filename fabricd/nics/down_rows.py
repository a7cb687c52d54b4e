"""Rows of the timeline that say why a port has no carrier. Pure."""

from __future__ import annotations

from fabricd.state.model import Link
from fabricd.timeline.rows import event
from telemetry.counters.linkstate import DownReason
from telemetry.events import Event, EventKind


def down_rows(before: DownReason | None, after: DownReason | None, link: Link) -> list[Event]:
    """A row where the reason is another one than before; none where it ends.

    Args:
        before: of the reading before this one.
        after: of this one.
        link: whose port it is.
    """
    if after is None or after == before or link.carrier is True:
        return []
    return [
        event(
            EventKind.FINDING,
            link=link.netdev,
            rail=link.rail,
            reason=f"no carrier: {after.text}",
            data={"source": "link_state", "down_reason": after.word},
        )
    ]
