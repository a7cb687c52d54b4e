"""Requests: any document is answered or refused with a text, and none breaks the daemon."""

import asyncio
import contextlib
import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_host import WholeHost

from fabricd.config.loader import ConfigError, Problem
from fabricd.config.source import ConfigSource
from fabricd.control.access import Caller
from fabricd.control.requests import CHANGING, LARGE, Requests
from fabricd.control.server import RequestError, encode
from fabricd.views.services import Services

ROOT = Caller(1, 0)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["rail0", "rail1", "host", "loss", "steer", "observe", "operator"]),
    lambda x: st.lists(x, max_size=2),
    max_leaves=3,
)  # fmt: skip
KEYS = ["link", "target", "name", "on", "seconds", "reason", "mode", "group", "since_ns",
        "until_ns", "kind", "limit", "job", "uid"]  # fmt: skip


@pytest.fixture
async def asked(tmp_path):
    whole = WholeHost(tmp_path)
    source = ConfigSource(tmp_path / "f.toml", whole.host.config)

    async def reload(by):
        raise ConfigError([Problem("f.toml", 3, "x", f"asked by {by}")])

    requests = Requests(whole.host, Services(), source, tmp_path / "none.db", reload)
    yield requests, whole
    whole.close()


async def ask(requests, op, **document):
    return await requests.handlers()[op]({"op": op, **document}, ROOT)


async def test_each_answer_is_json(asked):
    requests, _ = asked
    for op in ("status", "links", "config", "jobs", "observations"):
        assert json.loads(encode(await ask(requests, op)))
    assert (await ask(requests, "explain", link="rail0"))["history_error"], "no timeline yet"


async def test_a_refused_reload_says_why(asked):
    with pytest.raises(
        RequestError, match=r"the old configuration stays:\nf\.toml:3: x: asked by uid 0"
    ):
        await ask(asked[0], "reload")


@pytest.mark.parametrize(
    ("op", "document", "why"),
    [
        ("promote", {"mode": "sideways"}, "allowed: observe, steer, migrate"),
        ("promote", {"mode": "steer", "group": "x"}, 'no group "x"; allowed: none'),
        ("maintenance", {"target": "rail0"}, "needs an end"),
        ("maintenance", {"target": "rail0", "seconds": True}, "must be a number"),
        ("detector", {"name": "loss"}, "on must be true or false"),
        ("drain", {}, "link must be text"),
        ("drain", {"link": "rail0", "seconds": 10**400}, "out of range"),
        ("explain", {"link": "x"}, "allowed: rail0"),
        ("explain_job", {"job": "x"}, 'no job "x" uses the plugin on this host; known: none'),
        ("explain_job", {}, "job must be text"),
    ],
)
async def test_what_is_refused_says_why(asked, op, document, why):
    with pytest.raises(RequestError, match=why):
        await ask(asked[0], op, **document)


async def test_a_link_may_be_called_by_an_altname(asked, monkeypatch):
    """As in the configuration; the answer and what is stored name the kernel's device."""
    requests, whole = asked
    numbers = {"rail0": 7, "gpu0-nic": 7}
    monkeypatch.setattr(socket, "if_nametoindex", lambda name: numbers.get(name) or no_device())
    monkeypatch.setattr(socket, "if_indextoname", {7: "rail0"}.__getitem__)
    assert (await ask(requests, "explain", link="gpu0-nic"))["link"] == "rail0"
    await ask(requests, "drain", link="gpu0-nic", reason="new optics")
    assert set(whole.host.engine.overrides.drained) == {"rail0"}
    await ask(requests, "undrain", link="gpu0-nic")
    await ask(requests, "maintenance", target="gpu0-nic", seconds=60)
    assert set(whole.host.engine.overrides.planned) == {"rail0"}
    with pytest.raises(RequestError, match='no link "eth7"; allowed: rail0'):
        await ask(requests, "drain", link="eth7")


def no_device():
    raise OSError("no such device")


def test_every_operation_that_changes_is_known_as_such(asked):
    assert set(asked[0].handlers()) >= CHANGING | LARGE
    assert set(asked[0].handlers()) - CHANGING == {
        "status", "links", "config", "timeline", "jobs", "explain", "observations",
        "training_jobs", "migrations", "explain_host", "explain_job",
    }  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_document_is_answered_or_refused(asked, data):
    requests, whole = asked
    op = data.draw(st.sampled_from(sorted(requests.handlers())))
    document = data.draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))

    async def once():
        with contextlib.suppress(RequestError):
            encode(await ask(requests, op, **document))
        assert any(whole.weights().values())

    asyncio.run(once())


def test_the_configuration_can_be_taken_from_the_answer(asked):
    config = asked[1].host.config
    assert type(config).model_validate(config.model_dump(mode="json")) == config
