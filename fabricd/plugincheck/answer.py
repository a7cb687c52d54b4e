"""What one host says of its plugin and its verbs: one line of JSON, and its strict reader.

The line comes from another host, through a shell that may print anything: sizes, depths and types
are bounded, and whatever is shown later has no control characters.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fabricd import __version__
from fabricd.doctor.facts import HostFacts, PluginLibrary, VerbsPort
from telemetry.service.shown import on_one_line

MAX_LINE = 256 * 1024
_MAX_TEXT = 400
PREFIX = '{"fabricd_plugin_check":'
SHARED_VARIABLES = (
    "NCCL_NET_PLUGIN", "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_IB_HCA",
    "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_IB_PKEY", "FABRIC_FAILOVER", "FABRIC_WIRE", "FABRIC_UNPROVEN", "FABRIC_STRIPE",
    "FABRIC_VERBS", "FABRIC_GPUDIRECT",
)  # fmt: skip
"""Variables that all ranks of a job should have alike."""

Text = Annotated[str, Field(max_length=_MAX_TEXT, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$")]
Word = Annotated[str, Field(max_length=80, pattern=r"^[\x20-\x7e]*$")]
Version = Annotated[int, Field(ge=0, le=999, strict=True)]


class AnswerError(Exception):
    """There is no answer in what a host printed; the text says why."""


class _Model(BaseModel):
    # A newer release may say more; what it says of these keys has to be right.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class PluginAnswer(_Model):
    """The library, as `facts.PluginLibrary`."""

    path: Text = ""
    problem: Text = ""
    release: Word = ""
    wire_min: Version = 0
    wire_max: Version = 0
    tables: Annotated[list[Version], Field(max_length=64)] = []
    sha256: Word = ""
    transports: Annotated[list[Word], Field(max_length=8)] = []


class PortAnswer(_Model):
    """A verbs port. ``problem``: why a job cannot use it; empty: it can."""

    name: Word
    link_layer: Word
    problem: Text = ""


class Answer(_Model):
    """All that one host says."""

    fabricd_plugin_check: Literal[1] = 1
    host: Word
    release: Word
    plugin: PluginAnswer
    libibverbs: Word = ""
    memlock: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    """Bytes that a process may lock there; None: any amount, or unknown."""
    ports: Annotated[list[PortAnswer], Field(max_length=256)] = []
    rails: Annotated[list[Word], Field(max_length=256)] = []
    variables: Annotated[dict[Word, Text], Field(max_length=64)] = {}

    @property
    def usable(self) -> list[PortAnswer]:
        """Ports over which the plugin can carry verbs here; none where it or libibverbs cannot."""
        if not self.libibverbs or "verbs" not in self.plugin.transports:
            return []
        return [port for port in self.ports if not port.problem]

    def line(self) -> str:
        """One line of JSON: launchers mix the lines of their tasks, not what is within a line."""
        return self.model_dump_json()


def parse(line: bytes) -> Answer:
    """Read one line.

    Raises:
        AnswerError: it is no such line.
    """
    if len(line) > MAX_LINE:
        raise AnswerError(f"the answer has {len(line)} bytes; allowed: {MAX_LINE}")
    try:
        return Answer.model_validate_json(line)
    except (ValidationError, RecursionError) as error:
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "all of it"
            raise AnswerError(f"the answer makes no sense: {where}: {first['msg']}") from None
        raise AnswerError("the answer is nested too deeply") from None


def answers(output: bytes) -> Iterator[bytes]:
    """The lines of a command's output that claim to be answers; greetings and logs are none."""
    for line in output.splitlines():
        if line.lstrip().startswith(PREFIX.encode()):
            yield line.strip()


def local_answer(facts: HostFacts) -> Answer:
    """This host's answer."""
    plugin = facts.plugin
    environment = facts.nccl[0] if facts.nccl else None
    values = environment.values() if environment else {}
    return Answer(
        host=_word(facts.host or socket.gethostname()),
        release=__version__,
        plugin=_plugin(plugin),
        libibverbs=_word(facts.libibverbs),
        memlock=next((x.limit for x in facts.memlock if not x.exempt), None),
        ports=[
            PortAnswer(name=_word(str(port)), link_layer=_word(port.link_layer),
                       problem=shown(port_problem(facts, port)))
            for port in facts.ports[:256]
        ],
        rails=[_word(rail) for rail in facts.rails[:256]],
        variables={name: shown(values[name]) for name in SHARED_VARIABLES if name in values},
    )  # fmt: skip


def port_problem(facts: HostFacts, port: VerbsPort) -> str:
    """Why a job here cannot use a port; empty: it can."""
    node = next((node for node in facts.nodes if node.device == port.device), None)
    if not port.active:
        return f"the port is {port.state or 'in an unknown state'}"
    if node is None:
        return "there is no uverbs device"
    if node.problem:
        return node.problem
    if port.roce and not port.usable_gids:
        return "no RoCE v2 GID with a global address"
    return ""


def shown(text: str) -> str:
    """A text of another host on one line, without control characters and not too long."""
    return on_one_line(text)[:_MAX_TEXT]


def _plugin(plugin: PluginLibrary) -> PluginAnswer:
    return PluginAnswer(
        path=shown(plugin.path), problem=shown(plugin.problem), release=_word(plugin.release),
        wire_min=plugin.wire_min, wire_max=plugin.wire_max, tables=list(plugin.tables),
        sha256=plugin.sha256, transports=list(plugin.transports),
    )  # fmt: skip


def _word(text: str) -> str:
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)[:80]


def as_document(answer: Answer) -> dict[str, object]:
    """For ``--json`` of several hosts."""
    document: dict[str, object] = json.loads(answer.line())
    return document
