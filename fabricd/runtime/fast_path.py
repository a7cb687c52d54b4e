"""Which of the prober's records are looked at on their own, before all else. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fabricd.engine import Engine
from fabricd.probes.records import CarrierRecord, EventRecord, HeardRecord, MissRecord
from fabricd.state.model import OUT


def may_evaluate_first(records: Iterable[EventRecord], engine: Engine) -> bool:
    """Whether they may take a link out, and nothing else has to be known for that."""
    return all(link.carrier is not None for link in engine.links) and any(
        isinstance(record, CarrierRecord | MissRecord) for record in records
    )


def may_take_out(record: EventRecord, engine: Engine) -> bool:
    """Whether it may take a link or a path out, of those that are not."""
    if isinstance(record, HeardRecord):
        return False
    link = getattr(record, "link", None)
    if link is None:
        return True
    if engine.links[link].health.state in OUT:
        return False
    if not isinstance(record, MissRecord):
        return True
    own = [path for path in engine.paths if path.spec.link == link]
    out = {path.index for path in own if path.health.state in OUT}
    # Where none of a link's paths is in use, only those that are out can tell of the link.
    return record.path not in out or (len(out) == len(own) and not engine.blamed(link))
