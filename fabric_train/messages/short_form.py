"""The short form of a generation's JSON: what follows from its members is left out. Pure.

``slots`` name their member by its place: ``12/p0`` is ``{host}/{incarnation}/p0`` of member 12.
``hosts`` is left out then; ``electorate`` where it is all members, ``voters`` where they are the
electorate.
"""

from __future__ import annotations

from typing import Any

Data = dict[str, Any]


def shorten(data: Data) -> Data:
    """The short form of ``data``, which stays as it is; ``data`` itself where it has none."""
    short = dict(data)
    agents = [f"{one['host']}/{one['incarnation']}" for one in data["members"]]
    places = {agent: place for place, agent in enumerate(agents)}
    slots = []
    for slot, host in zip(data["slots"], data["hosts"], strict=True):
        agent, _, name = slot.rpartition("/")
        place = places.get(agent)
        if place is None or data["members"][place]["host"] != host:
            return data
        slots.append(f"{place}/{name}")
    short["slots"] = slots
    del short["hosts"]
    if short["voters"] == short["electorate"]:
        del short["voters"]
    if short["electorate"] == sorted(agents):
        del short["electorate"]
    return short


def lengthen(data: object, most: int) -> object:
    """The reverse of ``shorten``. What is of neither form is returned as it is, for who reads it.

    Raises:
        ValueError: its slots name no member, or would have more than ``most`` characters.
    """
    if not isinstance(data, dict) or "hosts" in data:
        return data
    try:
        members = [(str(one["host"]), str(one["incarnation"])) for one in data["members"]]
        places = [slot.partition("/") for slot in data["slots"]]
        named = [(members[_place(place, len(members))], name) for place, _, name in places]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no short form: {error!r:.80}") from None
    if sum(len(host) + len(life) + len(name) for (host, life), name in named) > most:
        raise ValueError(f"over {most} characters of names")
    whole = dict(data)
    whole["slots"] = [f"{host}/{life}/{name}" for (host, life), name in named]
    whole["hosts"] = [host for (host, _), _ in named]
    whole.setdefault("electorate", sorted(f"{host}/{life}" for host, life in members))
    whole.setdefault("voters", whole["electorate"])
    return whole


def _place(text: str, members: int) -> int:
    place = int(text)
    if not 0 <= place < members:
        raise ValueError(f"no member {place}")
    return place
