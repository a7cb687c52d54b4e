"""Who keeps hosts to their shares of the broker while no fabric-compute is online."""

import asyncio

import pytest

from compute import broker_files, quota_keeper
from compute.certificates import Authority, CertificateError, Site
from compute.mosquitto import KEEPER, BrokerFiles, prefix_of, values_of
from compute.quota import MOST_BYTES
from compute.quota_keeper import QuotaKeeper, settings_of
from telemetry.broker.settings import BrokerSettings
from telemetry.messages.envelope import BadMessageError, Message, Sender
from telemetry.messages.topics import Kind, Topic

STATUS, JOBS = "fabric/v1/compute/+/status", "fabric/v1/host/+/job/+"


class Client:
    """Stands in for the connection."""

    made: list

    def __init__(self, settings, *, subscriptions, receiver, admits, **_):
        self.filters = [one for one, _ in subscriptions]
        self.receiver, self.admits = receiver, admits
        self.connected, self.cleared = False, []
        Client.made.append(self)

    async def run(self):
        await asyncio.Event().wait()

    async def clear(self, names):
        self.cleared += names

    def change(self, *, connected):
        self.connected = connected
        self.receiver.connection_changed(connected=connected, reason="" if connected else "gone")

    def status(self, name, *, online):
        topic, data = Topic(Kind.COMPUTE_STATUS, name), {"online": online, "intended": False}
        self.receiver.received(Message(topic, Sender("b", "i"), 1, data), retained=True)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.001)


@pytest.fixture
async def clients(monkeypatch):
    """The connections that a keeper makes, one after the other."""
    Client.made = []
    monkeypatch.setattr(quota_keeper, "BrokerClient", Client)
    monkeypatch.setattr(quota_keeper, "SETTLE_S", 0.01)
    task = asyncio.create_task(QuotaKeeper(BrokerSettings("127.0.0.1"), 1000).run())
    await until(lambda: Client.made)
    yield Client.made
    task.cancel()
    await asyncio.wait({task})


async def test_it_counts_while_nobody_else_does(clients):
    first = clients[0]
    assert first.filters == [STATUS, JOBS], "from the start"
    first.change(connected=True)
    first.status("c0", online=True)
    first.status("c1", online=True)
    await until(lambda: len(clients) == 2)
    second = clients[1]
    assert second.filters == [STATUS], "they count"
    second.change(connected=True)
    second.status("c0", online=True)
    second.status("c1", online=True)
    second.status("c0", online=False)
    await asyncio.sleep(0.05)
    assert len(clients) == 2
    second.status("c1", online=False)
    await until(lambda: len(clients) == 3)
    assert clients[2].filters == [STATUS, JOBS]


async def test_without_a_connection_it_decides_nothing_and_then_who_is_online_is_not_known(clients):
    clients[0].change(connected=True)
    clients[0].status("c0", online=True)
    await until(lambda: len(clients) == 2)
    watching = clients[1]
    watching.change(connected=False)
    await asyncio.sleep(0.05)
    assert len(clients) == 2
    watching.change(connected=True)
    await until(lambda: len(clients) == 3)
    assert clients[2].filters == [STATUS, JOBS]


async def test_what_is_beyond_a_share_is_cleared_unread(clients):
    counting = clients[0]
    topics = [f"fabric/v1/host/h1/job/j{number}" for number in range(4)]
    for topic in topics:
        assert not counting.admits(topic, 400), "nothing of it is kept here"
    assert not counting.admits("fabric/v1/host/h2/job/j", 900)
    assert counting.admits("fabric/v1/compute/c0/status", 100)
    await until(lambda: counting.cleared)
    assert counting.cleared == topics[2:]
    assert not counting.admits(topics[0], 0), "it has cleared that itself"
    assert not counting.admits(topics[2], 400)
    await asyncio.sleep(0.01)
    assert counting.cleared == topics[2:]


async def test_a_status_of_another_form_is_refused(clients):
    topic = Topic(Kind.COMPUTE_STATUS, "c0")
    with pytest.raises(BadMessageError):
        clients[0].receiver.received(Message(topic, Sender("b", "i"), 1, {"on": 1}), retained=False)


@pytest.mark.parametrize(("memory", "share"), [(1024, 256 << 20), (16, 4 << 20)])
def test_all_that_it_has_to_know_lies_beside_the_broker(tmp_path, memory, share):
    authority, files = Authority(tmp_path / "authority"), BrokerFiles(tmp_path)
    authority.remember(Site(("management-1",), "site/v1"))
    assert settings_of(files) is None
    broker_files.prepare(authority, files, "0.0.0.0", 8883, "nobody", memory)
    settings, most = settings_of(files)
    assert (settings.host, settings.port, settings.prefix) == ("127.0.0.1", 8883, "site/v1")
    assert most == share
    assert settings.key_file.stat().st_mode & 0o007 == 0
    assert min(most, MOST_BYTES) <= MOST_BYTES
    assert KEEPER not in {one.name for one in authority.issued}
    with pytest.raises(CertificateError, match="a client of the broker's own"):
        authority.client(KEEPER, "host")
    files.keeper_key.unlink()  # As with the files of the version before.
    assert settings_of(files) is None


def test_texts_that_are_not_ours_say_nothing():
    assert prefix_of("user x\ntopic deny #\n") == ""
    assert values_of("# a comment\nlistener 1 2\n") == {"listener": "1 2"}
