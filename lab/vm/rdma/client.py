"""Talks to the owner of an RDMA lab (`lab.vm.rdma.owner`)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab.lifecycle.registry import LabError
from lab.topology import TopologyError
from lab.vm.rdma import registry

Answer = dict[str, Any]


@contextmanager
def request(name: str, op: str, **fields: object) -> Iterator[Iterator[Answer]]:
    """Send one request to the owner of lab ``name``; iterate over its answers.

    Leaving the block closes the connection, which ends what the request began.

    Raises:
        LabError: no such lab, or an answer says that it could not be done.
        TopologyError: the lab has no such host, rail or fault.
    """
    info = registry.ready(name)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(info.dir.socket))
        sock.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
        with sock.makefile() as file:
            yield _answers(file)


def _answers(lines: Iterator[str]) -> Iterator[Answer]:
    for line in lines:
        answer: Answer = json.loads(line)
        if not answer["ok"]:
            kind = TopologyError if answer.get("usage") else LabError
            raise kind(str(answer["error"]))
        yield answer


def ask(name: str, op: str, **fields: object) -> Answer:
    """The one answer to a request.

    Raises:
        LabError: as `request`; or the owner has gone.
    """
    with request(name, op, **fields) as answers:
        for answer in answers:
            return answer
    raise LabError(f"the owner of RDMA lab '{name}' has gone")
