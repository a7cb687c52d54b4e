"""Reloads: one at a time, beside the loop, the last state of the files wins."""

import asyncio
import threading

import pytest
from whole_host import LINKS

from fabricd.config import loader
from fabricd.config.loader import ConfigError, load
from fabricd.config.source import ConfigSource
from fabricd.runtime import reloader as module
from fabricd.runtime.reloader import Reloader

SOON_S = 60


class Notifier:
    def __init__(self):
        self.said = []

    def ready(self, status):
        self.said.append(status)

    def reloading(self):
        self.said.append("reloading")


class Made:
    """A reloader over real files, without a host."""

    def __init__(self, path):
        self.path = path
        self.main, self.shared = path / "fabricd.toml", path / "peers.toml"
        self.share("a")
        self.write(2)
        self.source = ConfigSource(self.main, load(self.main))
        self.source.peers_file = self.source.candidate().loaded.peers_file
        self.notifier, self.rows, self.applied = Notifier(), [], []
        self.reloader = Reloader(
            self.source,
            self.notifier,
            lambda _kind, reason, **data: self.rows.append((reason, data)),
            address_of=lambda _: "10.0.0.1",
            apply=lambda old, new, peers: self.applied.append((old, new, peers)),
        )
        self.tasks = [asyncio.create_task(self.reloader.run())]

    def write(self, hold):
        self.main.write_text(
            f'[host]\nname = "h"\n[paths]\npeers_file = "{self.shared}"\n'
            f"[hold]\nhold_down_s = {hold}\n{LINKS}"
        )

    def share(self, *hosts):
        new = self.path / "new"
        new.write_text(
            "".join(
                f'[[peers]]\nhost = "{host}"\n'
                f'addresses = [{{ rail = 0, address = "10.0.0.{n}" }}]\n'
                for n, host in enumerate(hosts, 2)
            )
        )
        new.replace(self.shared)

    def slow_down(self, monkeypatch):
        """Each look at the files waits once it has read them; returns (begun, go on)."""
        begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
        candidate = ConfigSource.candidate

        def slow(source):
            found = candidate(source)
            begun.release()
            assert go_on.acquire(timeout=SOON_S)
            return found

        monkeypatch.setattr(ConfigSource, "candidate", slow)
        return begun, go_on

    def hosts(self):
        return [peer.host for peer in self.source.config.peers]

    async def close(self):
        self.reloader.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def acquired(semaphore):
    assert await asyncio.to_thread(semaphore.acquire, timeout=SOON_S)


async def until(condition):
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.fixture
async def made(tmp_path):
    whole = Made(tmp_path)
    yield whole
    await whole.close()


async def test_a_reload_applies_what_changed_and_says_so(made):
    old = made.source.config
    made.write(3)
    assert await made.reloader.reload("uid 0") == ["hold.hold_down_s"]
    ((before, after, peers),) = made.applied
    assert (before, after) == (old, made.source.config)
    assert after.hold.hold_down_s == 3
    assert peers.peers is after.peers
    assert made.rows == [
        ("reloaded", {"by": "uid 0", "hash": made.source.hash, "changed": "hold.hold_down_s"})
    ]
    assert made.notifier.said == ["reloading", "reloaded"]
    assert await made.reloader.reload("uid 0") == [], "asked for: applied and recorded again"
    assert made.rows[-1][1]["changed"] == "nothing"


async def test_a_bad_file_changes_nothing_and_says_why(made):
    made.write(-1)
    with pytest.raises(ConfigError, match=r"hold\.hold_down_s: got -1"):
        await made.reloader.reload("uid 0")
    ((reason, data),) = made.rows
    assert (reason, data["by"], data["problems"]) == ("reload refused", "uid 0", 1)
    assert made.applied == []
    assert made.notifier.said == ["reloading", "reloaded"]
    made.write(4)
    assert await made.reloader.reload("uid 0") == ["hold.hold_down_s"]


async def test_the_loop_goes_on_while_files_are_read(made, monkeypatch):
    begun, go_on = made.slow_down(monkeypatch)
    asked = asyncio.create_task(made.reloader.reload("uid 0"))
    await acquired(begun)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not asked.done()
    go_on.release()
    assert await asked == []


async def test_requests_that_come_meanwhile_share_one_more_and_the_last_state_wins(
    made, monkeypatch
):
    begun, go_on = made.slow_down(monkeypatch)
    made.write(3)
    first = asyncio.create_task(made.reloader.reload("uid 0"))
    await acquired(begun)
    made.write(4)
    made.reloader.hang_up()
    second = asyncio.create_task(made.reloader.reload("uid 7"))
    third = asyncio.create_task(made.reloader.reload("uid 7"))
    await asyncio.sleep(0)
    made.write(5)
    go_on.release()
    await first
    await acquired(begun)
    assert not second.done(), "one at a time"
    go_on.release()
    assert await second == await third == ["hold.hold_down_s"]
    assert made.source.config.hold.hold_down_s == 5
    assert [data["by"] for _, data in made.rows] == ["uid 0", "SIGHUP, uid 7"]
    assert made.source.reloads == 2


async def test_who_asked_and_left_ends_nothing(made, monkeypatch):
    begun, go_on = made.slow_down(monkeypatch)
    made.write(3)
    asked = asyncio.create_task(made.reloader.reload("uid 0"))
    await acquired(begun)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    go_on.release()
    await until(lambda: made.applied)
    assert made.source.config.hold.hold_down_s == 3


async def test_while_the_daemon_stops_nothing_is_reloaded(made, monkeypatch):
    begun, go_on = made.slow_down(monkeypatch)
    made.write(3)
    running = asyncio.create_task(made.reloader.reload("uid 0"))
    await acquired(begun)
    waiting = asyncio.create_task(made.reloader.reload("uid 1"))
    await asyncio.sleep(0)
    await made.close()
    made.reloader.hang_up()
    for asked in (running, waiting, asyncio.create_task(made.reloader.reload("uid 2"))):
        with pytest.raises(ConfigError, match="not reloaded: fabricd stops"):
            await asked
    go_on.release()
    await asyncio.sleep(0.05)
    assert (made.applied, made.rows) == ([], [])
    assert made.notifier.said == ["reloading"], "no READY after STOPPING"


async def test_files_that_hang_refuse_the_reload_and_the_loop_lives(made, monkeypatch):
    monkeypatch.setattr(made.reloader._reader, "limit_s", 0.05)
    begun, go_on = made.slow_down(monkeypatch)
    made.write(3)
    with pytest.raises(ConfigError, match="the file system does not answer"):
        await made.reloader.reload("uid 0")
    await acquired(begun)
    with pytest.raises(ConfigError, match="the file system does not answer"):
        await made.reloader.reload("uid 0")
    go_on.release()
    await made.reloader._reader.wait_idle()
    assert made.applied == [], "what comes too late is not used"
    monkeypatch.undo()
    monkeypatch.setattr(made.reloader._reader, "limit_s", SOON_S)
    assert await made.reloader.reload("uid 0") == ["hold.hold_down_s"]


async def test_a_mistake_of_ours_ends_the_task_and_with_it_the_daemon(made):
    def wrong(*_):
        raise ZeroDivisionError

    made.reloader._apply = wrong
    with pytest.raises(ZeroDivisionError):
        await made.reloader.reload("uid 0")
    await until(made.tasks[0].done)
    assert isinstance(made.tasks[0].exception(), ZeroDivisionError)


@pytest.fixture
async def watched(made, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr("fabricd.config.peers_watch.SETTLE_NS", 30_000_000)
    made.tasks.append(asyncio.create_task(made.reloader.watch()))
    return made


async def test_a_changed_peers_file_is_reloaded_and_the_row_says_why(watched):
    await asyncio.sleep(0.2)
    assert watched.rows == [], "nothing has changed"
    watched.share("a", "b")
    await until(lambda: watched.hosts() == ["a", "b"])
    (row,) = watched.rows
    assert (row[0], row[1]["by"], row[1]["changed"]) == ("reloaded", "peers_file changed", "peers")


async def test_a_bad_peers_file_is_refused_once_and_a_good_one_is_taken(watched):
    watched.shared.write_text("[[peers]\n")
    await until(lambda: watched.rows)
    await asyncio.sleep(0.3)
    ((reason, data),) = watched.rows
    assert (reason, data["by"]) == ("reload refused", "peers_file changed")
    assert watched.hosts() == ["a"]
    watched.share("a")
    await until(lambda: len(watched.rows) == 2)
    assert watched.rows[1][0] == "reloaded", "as before: but the last reload was refused"
    assert watched.source.problems == ()


async def test_a_peers_file_that_is_written_again_as_it_is_says_nothing(watched):
    before = watched.source.peers_file
    watched.share("a")
    await until(lambda: watched.source.peers_file != before)
    await asyncio.sleep(0.1)
    assert (watched.rows, watched.applied) == ([], [])


async def test_a_file_system_that_hangs_holds_up_neither_loop_nor_reloads(watched, monkeypatch):
    monkeypatch.setattr(watched.reloader._looker, "limit_s", 0.02)
    go_on = threading.Event()
    monkeypatch.setattr(module, "file_state", lambda _: go_on.wait(SOON_S))
    await until(lambda: watched.reloader._looker.busy)
    watched.write(3)
    assert await watched.reloader.reload("uid 0") == ["hold.hold_down_s"]
    monkeypatch.undo()
    go_on.set()


async def test_a_device_that_comes_under_an_altname_has_the_files_read_again(made, monkeypatch):
    """Its link stood in the file by that name, and the device was not there."""
    names = {}
    for where in (module, loader):
        monkeypatch.setattr(where, "kernel_name", lambda name: names.get(name, name))
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    made.tasks.append(asyncio.create_task(made.reloader.watch()))
    before = made.source.config.links[0].netdev
    names[before] = "eth3"
    await until(lambda: made.rows)
    assert made.source.config.links[0].netdev == "eth3"
    assert made.rows[0][1]["by"] == "altname"


async def test_an_altname_that_cannot_be_taken_is_tried_once(made, monkeypatch):
    first, second = (link.netdev for link in made.source.config.links[:2])
    names = {first: second}  # one device, two links
    for where in (module, loader):
        monkeypatch.setattr(where, "kernel_name", lambda name: names.get(name, name))
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    made.tasks.append(asyncio.create_task(made.reloader.watch()))
    await until(lambda: made.rows)
    looks = []
    monkeypatch.setattr(module, "kernel_name", lambda n: looks.append(n) or names.get(n, n))
    await until(lambda: len(looks) > 20)
    assert [reason for reason, _ in made.rows] == ["reload refused"]
    assert made.source.config.links[0].netdev == first
