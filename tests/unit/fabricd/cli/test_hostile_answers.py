"""Every command of fabricctl that shows others' words, with such as would act on a terminal."""

import json

import pytest
from control_sockets import served
from typer.testing import CliRunner
from whole_host import WholeHost, peer_tables

import fabricd.cli
from fabricd.config.source import ConfigSource
from fabricd.control.access import Caller
from fabricd.control.requests import Requests
from fabricd.views.services import Services

WORDS = [
    "\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "[/x]", "[link=file:///etc]x[/link]",
    "a\u202egpj", "one\ntwo", "one\rtwo", "\u2066x", "one\u2028two", "\x00\x7f",
]  # fmt: skip
PLACE = {"host": "h1"}
RAIL = {
    "netdev": "rail0", "tx_bytes": 1, "rx_bytes": 1, "retransmit_bytes": 0, "tx_messages": 1,
    "stall_ns": 0, "failovers": 0, "in_flight_bytes": 1, "live_paths": 1, "dead_paths": 1,
    "latency": {"sum_ns": 0, "buckets": [1] * 8},
}  # fmt: skip
EVIDENCE = {
    "lost": True, "rule": "r", "reason": "r", "counts": {"misses": 1}, "misses": ["h3"],
    "last_will": True, "fence": "f",
}  # fmt: skip
ROW = {
    "kind": "plugin", "wall_ns": 1, "mono_ns": 1, "link": "rail0", "peer": "p", "from": "up",
    "to": "down", "reason": "path_down", "data": {"job": "j", "why": "w"}, "count": 3,
}  # fmt: skip
NOTES = {"host": "h0", "connected": False, "why_not_connected": "w", "computes": {"c0": False}}
MADE = {
    "timeline": [ROW, ROW | {"kind": "generation"}, ROW | {"kind": "steer", "data": {"weight": 1}}],
    "jobs": {
        "time_ns": 1, "left_out": 1, "scan": {"partial": "p"}, "slow": {"rail0": "slow"},
        "processes": [{"job": "j", "pid": 1, "uid": 1, "subdirectory": "s", "start_ns": 5,
                       "following": True, "errors": 0, "rails": [RAIL], "groups": []}],
    },
    "training_jobs": NOTES | {
        "jobs": [{"job": "j", "phase": "running", "generation": 1, "here": "h", "reason": "r",
                  "ranks": {"0": PLACE}, "spares": [PLACE], "slow_ranks": ["s"],
                  "suspected": ["h2"], "present": False, "age_s": 3.0}],
    },
    "migrations": NOTES | {
        "migrations": [{"wall_ns": 1, "job": "j", "generation": 1, "class": "c", "ranks": [0],
                        "from": ["a"], "to": ["b"], "committed_ms": 1.0, "steps_lost": 0,
                        "outcome": "failed", "reason": "r"}],
    },
    "explain_host": NOTES | {
        "asked": "h0", "probes": None, "history": [ROW],
        "jobs": [{"job": "j", "generation": 1, "ranks": [0], "present": True, "current": False,
                  "age_s": 1.0, "evidence": EVIDENCE}],
        "fences": [{"id": "f", "applied": True, "reason": "r"}],
    },
    "explain_job": {
        "job": "j", "host": "h0", "processes": 1, "stands": True, "bytes_s": 1.0, "seconds": 1.0,
        "stalled_s": 1.0, "peers": ["p"], "waits_for": ["w"], "causes": [{"text": "t"}],
    },
}  # fmt: skip
COMMANDS = [
    ["status"], ["links"], ["links", "--paths"], ["explain", "rail0"], ["timeline"], ["events"],
    ["jobs"], ["migrations"], ["explain", "host", "h1"], ["explain", "job", "j"], ["check"],
    ["top", "--once", "-i", "0.1"], ["top", "--once", "-i", "0.1", "--groups"], ["locate"],
    ["observations"], ["config", "show"], ["detector", "list"], ["drain", "rail0"],
    ["promote", "steer", "--yes"], ["reload"],
]  # fmt: skip
ENUMERATED = {
    "kind", "mode", "promoted", "op", "way", "direction", "element", "state", "netdev", "from",
    "to",
}  # fmt: skip
"""Words of the daemon alone."""


def poisoned(value, words):
    if isinstance(value, dict):
        return {
            key: one if key in ENUMERATED and isinstance(one, str) else poisoned(one, words)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [poisoned(one, words) for one in value]
    return f"{value}{words}" if isinstance(value, str) else value


@pytest.fixture
async def honest(tmp_path):
    """Operation → what a daemon answers."""
    whole = WholeHost(tmp_path, extra=peer_tables())
    source = ConfigSource(tmp_path / "f.toml", whole.host.config)

    async def reload(_by):
        return ["probe"]

    requests = Requests(whole.host, Services(), source, tmp_path / "none.db", reload)
    handlers, caller = requests.handlers(), Caller(1, 0)
    answers = {
        op: json.loads(json.dumps(await handlers[op]({"op": op, **more}, caller), default=str))
        for op, more in {
            "status": {}, "links": {}, "config": {}, "observations": {},
            "explain": {"link": "rail0"}, "drain": {"link": "rail0"}, "reload": {},
            "promote": {"mode": "steer"},
        }.items()
    }  # fmt: skip
    yield answers | MADE
    whole.close()


@pytest.mark.parametrize("words", WORDS)
async def test_no_command_lets_them_act(honest, tmp_path, words):
    def answering(op):
        async def answer(_request, _caller):
            return honest[op] if op == "config" else poisoned(honest[op], words)

        return answer

    harmed = {}
    with served(tmp_path / "ctl.sock", {op: answering(op) for op in honest}) as path:
        for command in COMMANDS:
            line = [*command, "--socket", str(path)]
            if command == ["locate"]:
                line = ["locate", str(path)]
            done = CliRunner().invoke(fabricd.cli.app, line)
            said = done.output
            wrong = [one for one in said if not one.isprintable() and one != "\n"]
            broken = done.exception is not None and not isinstance(done.exception, SystemExit)
            claimed = [line for line in said.splitlines() if line.startswith("two")]
            if wrong or broken or claimed or not said.strip():
                harmed[" ".join(command)] = (wrong, repr(done.exception), said[:200])
    assert harmed == {}
