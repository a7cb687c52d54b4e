"""Messages of hosts and operators become the core's inputs, or are refused and change nothing.

Pure: the time is a parameter. Of each retained topic only newer messages count (``ReplayGuard``).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from compute.core import Core
from compute.name_budget import NameBudget
from fabric_train.messages import documents as train
from telemetry.broker.guard import ReplayGuard, TooManyTopicsError
from telemetry.messages.documents import (
    HostDocument,
    HostEvent,
    HostJob,
    HostObservations,
    HostStatus,
    Stop,
    parse,
)
from telemetry.messages.envelope import BadMessageError, Message
from telemetry.messages.topics import Kind, Topic

UNSEEN_S = 30.0
"""A host that is back at the broker has published all of its state again within this time."""
REASONS = ("topic", "envelope", "data", "identity", "replay", "share")


class RefusedError(Exception):
    """A message is refused. ``reason`` is one of ``REASONS``; the text names what is wrong."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Intake:
    """Feeds the core.

    Attributes:
        accepted: messages that counted, by kind.
        refused: messages that did not, by reason.
        statuses: the newest status of each host.
        documents: (host, name of a job) → the newest document of the job's agent.
        stop: what an operator's retained message says.
    """

    def __init__(self, core: Core, *, older_hosts: bool = False) -> None:
        """Nothing is known yet. ``older_hosts``: also jobs count of which nobody says the user."""
        self._older_hosts = older_hosts
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.statuses: dict[str, HostStatus] = {}
        self.documents: dict[tuple[str, str], train.AgentDocument] = {}
        self.stop = Stop(stopped=False)
        self._core = core
        self._guard = ReplayGuard()
        self._names = NameBudget()
        self._known: set[Topic] = set()
        """Topics with a retained message that counts."""
        self._seen: set[Topic] = set()
        """Of these, those that the present connection has brought."""
        self._boots: dict[str, str] = {}
        """Host → the boot of its newest status."""
        self._back: dict[str, float] = {}
        """Host → when the present connection brought its status."""

    def documents_by_job(self) -> dict[tuple[str, str], train.AgentDocument]:
        """(Host, job) → the newest document of its agent. Jobs as the core calls them."""
        job_of = self._core.job_of
        return {(host, job_of(host, name)): one for (host, name), one in self.documents.items()}

    @property
    def pending(self) -> bool:
        """Something came from which a decision may follow."""
        return self._core.pending

    def connected(self) -> None:
        """A new connection: the broker sends all retained messages again."""
        self._seen.clear()
        self._back.clear()

    def refuse(self, reason: str) -> None:
        """Count a message that was refused before it came here."""
        self.refused[reason if reason in REASONS else "envelope"] += 1

    def receive(self, message: Message, now: float) -> None:
        """Take a message. Raises ``RefusedError``: it is counted, and nothing has changed."""
        try:
            self._receive(message, now)
        except RefusedError as error:
            self.refused[error.reason] += 1
            raise
        self.accepted[message.topic.kind.value] += 1

    def _receive(self, message: Message, now: float) -> None:
        topic = message.topic
        if topic in self._known:
            self._seen.add(topic)  # Also of a repetition: it is still retained.
        if topic.kind is Kind.HOST_STATUS:
            self._back.setdefault(topic.owner, now)
        try:
            if not self._guard.is_new(message):
                return  # The broker has sent it again.
        except TooManyTopicsError as error:
            raise RefusedError("share", str(error)) from None
        except BadMessageError as error:
            boot, newest = message.sender.boot_id, self._boots.get(topic.owner)
            if newest is not None and boot != newest:
                raise RefusedError(
                    "identity",
                    f"host {topic.owner}: boot {boot:.80} speaks, though boot {newest:.80} came "
                    "after it: do two hosts have this name? Only the later one counts",
                ) from None
            raise RefusedError("replay", str(error)) from None
        try:
            self._apply(topic, message, now)
        except (BadMessageError, train.DocumentError) as error:
            raise RefusedError("data", str(error)) from None
        self._guard.note(message)
        self._known.add(topic)
        self._seen.add(topic)

    def event(self, message: Message) -> HostEvent:
        """An event of a host. Raises ``RefusedError``: it is counted."""
        try:
            if message.topic.kind is not Kind.HOST_EVENT:
                raise RefusedError("topic", f"{message.topic.kind.value} is no event")
            event = parse(HostEvent, message.data)
        except BadMessageError as error:
            self.refused["data"] += 1
            raise RefusedError("data", str(error)) from None
        except RefusedError as error:
            self.refused[error.reason] += 1
            raise
        self.accepted[Kind.HOST_EVENT.value] += 1
        return event

    def _apply(self, topic: Topic, message: Message, now: float) -> None:
        host, data = topic.owner, message.data
        match topic.kind:
            case Kind.HOST_STATUS:
                status = parse(HostStatus, data)
                self._core.host_status(host, message.sender, status, now)
                self.statuses[host] = status
                self._boots[host] = message.sender.boot_id
            case Kind.HOST_OBSERVATIONS:
                observations = parse(HostObservations, data)
                self._core.host_observations(host, message.sender, observations, now)
            case Kind.HOST_DOCUMENT:
                document = parse(HostDocument, data)
                _same("host", document.name, host)
                self._core.host_document(host, document, now)
            case Kind.HOST_JOB:
                self._job(topic, data, now)
            case Kind.STOP:
                self.stop = parse(Stop, data)
            case _:
                raise RefusedError("topic", f"{topic.kind.value} is not for fabric-compute")

    def _job(self, topic: Topic, data: dict[str, Any], now: float) -> None:
        job = parse(HostJob, data)
        _same("job", job.job, topic.name)
        if job.uid is None and not self._older_hosts:
            raise RefusedError(
                "identity",
                f"host {topic.owner} does not say whose job {topic.name} is: its fabricd is of an "
                "older version. Upgrade it, or set accept_older_hosts in [jobs] meanwhile",
            )
        if topic not in self._known and not self._names.has_room(topic.owner, job.uid, now):
            raise RefusedError(
                "share",
                f"host {topic.owner}, uid {job.uid}: too many new jobs within a short time; "
                f"{topic.name} counts when it is said again later",
            )
        document = None
        if not job.gone:
            document = train.parse(train.AgentDocument, job.document)
            _same("job", document.job, topic.name)
            _same("host", document.host, topic.owner)
            _same("incarnation", document.incarnation, job.incarnation)
        self._core.host_job(topic.owner, topic.name, job, now, document=document)
        if topic not in self._known:
            self._names.spend(topic.owner, job.uid, now)
        if document is None:
            self.documents.pop((topic.owner, topic.name), None)
        else:
            self.documents[topic.owner, topic.name] = document

    def clear(self, topic: Topic, now: float) -> None:
        """The retained message of a topic was taken away."""
        self._known.discard(topic)
        self._seen.discard(topic)
        self._guard.forget(topic)
        match topic.kind:
            case Kind.HOST_DOCUMENT:
                self._core.host_document(topic.owner, None, now)
            case Kind.HOST_JOB:
                self.documents.pop((topic.owner, topic.name), None)
                self._core.host_job(topic.owner, topic.name, None, now)
            case Kind.STOP:
                self.stop = Stop(stopped=False)
            case _:
                return  # A status or observations that are gone say nothing new.

    def sweep(self, now: float) -> list[Topic]:
        """Clear what was taken away while there was no connection; returns these topics.

        A topic counts as cleared when its host has been back for ``UNSEEN_S`` without it. A broker
        that has lost its state clears nothing: its hosts publish theirs again.
        """
        gone = [
            topic
            for topic in self._known - self._seen
            if now - self._back.get(topic.owner, now) >= UNSEEN_S
        ]
        for topic in gone:
            self.clear(topic, now)
        return gone


def _same(what: str, said: str, known: str) -> None:
    if said != known:
        raise RefusedError("identity", f"{what} {said:.80} on a topic of {known:.80}")
