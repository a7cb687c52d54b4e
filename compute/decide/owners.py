"""Whose job a document is of. A name is no credential: two owners' jobs of one name are two jobs.

The owner of a job is the user who runs it, as each host's fabricd says (never the job itself), and
its key's hash, where it has a key. Only hosts of the job, and fabric-computes, can read its
documents, so nobody else knows that hash.

A job is called by its name. A second one of that name, of another owner, is called by its name and
a hash of its owner, e.g. ``gpt.3f9a2c41``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import NamedTuple

from fabric_train.messages.documents import AgentDocument
from telemetry.messages.documents import HostJob

LONGEST_NAME = 253


class Owner(NamedTuple):
    """``uid``: None where a host of an older version does not say it.

    ``key``: the hash, "" for a job without a key.
    """

    uid: int | None
    key: str

    def matches(self, other: Owner) -> bool:
        """The same owner, as far as the users are known."""
        return self.key == other.key and (None in (self.uid, other.uid) or self.uid == other.uid)


def owner_of(news: HostJob, document: AgentDocument | None) -> Owner:
    """Whose job it is, by what a host says. ``document``: None for a run that has ended.

    Who does not say the key of a job, has no part in it: also not one that has ended.
    """
    key = document.key if document is not None else news.document.get("key")
    return Owner(news.uid, key if isinstance(key, str) else "")


class JobOwners:
    """Which job each host's document of a name is of."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, Owner]] = {}
        """Job → its name at the hosts, and its owner."""
        self._by_name: dict[str, list[str]] = {}
        self._homes: dict[tuple[str, str], str] = {}
        """(Host, name) → the job."""
        self._left = False
        """A host has left a job since the last ``sweep``."""

    def job_of(self, host: str, name: str) -> str:
        """The job of which ``host`` has a document under this name; "": of none."""
        return self._homes.get((host, name), "")

    def name_of(self, job: str) -> str:
        """What its hosts call it."""
        return self._owners[job][0] if job in self._owners else job

    def user_of(self, job: str) -> str:
        """Whose it is, for counting."""
        return str(self._owners[job][1].uid) if job in self._owners else ""

    def uid_of(self, job: str) -> int | None:
        """Whose it is; None: not known."""
        return self._owners[job][1].uid if job in self._owners else None

    def is_of(self, job: str, uid: int | None) -> bool:
        """Whether ``job`` may be this user's."""
        known = self.uid_of(job)
        return None in (known, uid) or known == uid

    def namesakes(self, job: str) -> list[str]:
        """Jobs of other owners with the same name, the oldest first."""
        return [one for one in self._by_name.get(self.name_of(job), ()) if one != job]

    def place(
        self, host: str, name: str, owner: Owner, *, is_over: Callable[[str], bool]
    ) -> tuple[str, str]:
        """Take a host's document. Returns its job, and the one that it was of before or "".

        ``is_over``: all fabric-runs of a job have ended. A new run of the same user goes on as that
        job, whatever its key.
        """
        before = self._homes.get((host, name), "")
        job = self._find(name, owner, before, is_over) or self._new(name, owner)
        uid = self._owners[job][1].uid if owner.uid is None else owner.uid
        self._owners[job] = name, Owner(uid, owner.key)
        self._homes[host, name] = job
        self._left = self._left or before not in ("", job)
        return job, before if before != job else ""

    def _find(
        self, name: str, owner: Owner, before: str, is_over: Callable[[str], bool]
    ) -> str | None:
        there = self._by_name.get(name, [])
        first = [before, *there] if before else there
        for job in first:
            if self._owners[job][1].matches(owner):
                return job
        for job in first:
            if self._owners[job][1].uid == owner.uid and is_over(job):
                return job
        return None

    def _new(self, name: str, owner: Owner) -> str:
        job, salt = name, 0
        while job in self._owners:
            said = f"{owner.uid}/{owner.key}/{salt}"
            tail = "." + hashlib.sha256(said.encode()).hexdigest()[:8]
            job, salt = name[: LONGEST_NAME - len(tail)] + tail, salt + 1
        self._owners[job] = name, owner
        self._by_name.setdefault(name, []).append(job)
        return job

    def leave(self, host: str, name: str) -> list[str]:
        """The document of a host is cleared. Returns all jobs of which it may have been."""
        self._left = True
        self._homes.pop((host, name), None)
        return list(self._by_name.get(name, ()))

    def sweep(self, shown: Collection[str]) -> None:
        """Forget jobs of which there is no document, but for those that are still ``shown``."""
        if not self._left:
            return
        kept = {*self._homes.values(), *shown}
        self._left = bool(self._owners.keys() & set(shown) - set(self._homes.values()))
        for job in self._owners.keys() - kept:
            name, _ = self._owners.pop(job)
            others = self._by_name[name]
            others.remove(job)
            if not others:
                del self._by_name[name]
