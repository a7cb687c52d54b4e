"""A site's long list of peers on real processes: reloads beside the daemon's work, a file followed.

These ask for behaviour, with generous limits; `./run bench peers` has the figures.
"""

import threading
import time

import pytest
from test_daemon_faults import READY_S, SLOW_S, ask, page, prober_in_use, ready, rows
from test_operate import ctl, done

from lab.cluster import wait_until
from lab.inputs.peer_list import peer_list, peer_table

HOSTS, RAILS = 2048, 8
STALE_S = 3.0
"""The plugin takes an older steer page for absent."""
ANSWER_S = 5.0


@pytest.fixture
def lab(cluster):
    made = cluster(hosts=2, rails=2)
    made.start_daemons(hold={"hold_down_s": 0.5, "probation_s": 1.0})
    for node in made.nodes:
        wait_until(lambda n=node: ready(n), READY_S, f"{node.name} hears its peer")
    return made


class Witness:
    """Looks at page and socket until it is closed: the oldest page, the longest answer."""

    def __init__(self, node):
        self.node, self.oldest_s, self.answer_s, self.answers = node, 0.0, 0.0, 0
        self.failed = None
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=[w])
                         for w in (self._page, self._ask)]  # fmt: skip

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self.failed is None, self.failed

    def _guard(self, look):
        try:
            while not self._stop.wait(0.02):
                look()
        except Exception as error:
            self.failed = error

    def _page(self):
        age = (time.monotonic_ns() - page(self.node).heartbeat_ns) / 1e9
        self.oldest_s = max(self.oldest_s, age)

    def _ask(self):
        began = time.monotonic()
        ask(self.node, "status")
        self.answer_s = max(self.answer_s, time.monotonic() - began)
        self.answers += 1


def share(file, text):
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def table(node, rails=2):
    """The entry of a host of the lab."""
    entries = ", ".join(f'{{ rail = {r}, address = "{node.address(r)}" }}' for r in range(rails))
    return f'[[peers]]\nhost = "{node.name}"\naddresses = [{entries}]\n'


def peers(node):
    return {peer["host"] for peer in ask(node, "config")["config"]["peers"]}


def reloads(node, reason="reloaded"):
    found = rows(node, kind="daemon")
    return [row["data"]["by"] for row in found if row["reason"] == reason]


@pytest.mark.nightly
def test_a_reload_of_a_long_list_holds_up_neither_page_nor_socket(lab):
    node = lab.nodes[0]
    base, pid = node.config_path.read_text(), node.daemon.pid
    with Witness(node) as witness:
        node.config_path.write_text(base + peer_list(HOSTS, RAILS))
        assert "peers changed" in done(node, "reload")
        # Twice at once: they wait for each other, and the last state of the file wins.
        node.config_path.write_text(base + peer_list(HOSTS, RAILS, first=1))
        node.daemon.kill(1)
        node.config_path.write_text(base + peer_list(HOSTS, RAILS, first=2))
        done(node, "reload")
        assert peers(node) == {"h1", *(f"site{n}" for n in range(2, HOSTS + 2))}
        node.config_path.write_text(base)
        assert "peers changed" in done(node, "reload")
    assert node.daemon.pid == pid
    assert witness.oldest_s < STALE_S
    assert witness.answer_s < ANSWER_S
    assert witness.answers > 10
    wait_until(lambda: ready(node), READY_S, "what stayed kept its state")


def test_a_start_with_a_long_list_and_a_bad_one(lab):
    node = lab.nodes[0]
    good = node.config_path.read_text()
    node.config_path.write_text(good + peer_list(HOSTS, RAILS))
    node.restart_daemon()
    wait_until(lambda: prober_in_use(node), READY_S, "it answers, and uses the prober")
    bad = good + peer_list(HOSTS, RAILS) + peer_table(0, RAILS)
    file = node.dir / "bad.toml"
    file.write_text(bad)
    refused = ctl(node, "config", "check", str(file))
    line = len(bad.splitlines()) - RAILS - 2
    assert refused.returncode == 1
    assert f"bad.toml:{line}: peers[{HOSTS + 1}].host: " in refused.stderr
    assert '"site0" is also peers[1].host' in refused.stderr


@pytest.mark.nightly
def test_a_shared_list_is_followed_while_the_daemon_runs(lab):
    """Replaced, moved behind a link as in a ConfigMap, spoiled, gone and back; its own entry in."""
    node = lab.nodes[0]
    data = node.dir / "data"
    for name in ("one", "two"):
        (data / name).mkdir(parents=True)
    me, own = (table(x) for x in lab.nodes)
    head, listed, rest = node.config_path.read_text().partition("[[peers]]")
    head += rest[rest.index("\n\n") :] if listed else ""
    shared = node.dir / "peers.toml"
    share(shared, me + own)
    node.config_path.write_text(head.replace("[paths]\n", f'[paths]\npeers_file = "{shared}"\n', 1))
    assert str(shared) in done(node, "config", "check", str(node.config_path))
    done(node, "reload")
    assert peers(node) == {"h1"}, "its own entry is left out"
    wait_until(lambda: ready(node), READY_S, "h1 is probed as before")
    before = reloads(node)

    with Witness(node) as witness:
        share(shared, me + own + peer_list(HOSTS, RAILS))
        wait_until(lambda: len(peers(node)) == HOSTS + 1, SLOW_S, "renamed over")
        shared.write_text(me + own + peer_list(2))
        wait_until(lambda: len(peers(node)) == 3, SLOW_S, "written in place")
        (data / "one" / "peers.toml").write_text(me + own + peer_list(3))
        (data / "two" / "peers.toml").write_text(me + own + peer_list(4))
        (data / "..data").symlink_to("one")
        shared.unlink()
        shared.symlink_to(data / "..data" / "peers.toml")
        wait_until(lambda: len(peers(node)) == 4, SLOW_S, "behind a link")
        (data / "..new").symlink_to("two")
        (data / "..new").replace(data / "..data")
        wait_until(lambda: len(peers(node)) == 5, SLOW_S, "the link moved")
    wait_until(lambda: len(reloads(node)) == len(before) + 4, SLOW_S, "a row for each")
    assert set(reloads(node)[len(before) :]) == {"peers_file changed"}
    assert witness.oldest_s < STALE_S
    assert witness.answer_s < ANSWER_S

    bad = data / "two" / "peers.toml"
    share(bad, me + own + "[[peers]]\nhost = 3\n")
    wait_until(lambda: reloads(node, "reload refused"), SLOW_S, "refused")
    bad.unlink()
    wait_until(lambda: len(reloads(node, "reload refused")) == 2, SLOW_S, "gone")
    time.sleep(3.0)
    assert reloads(node, "reload refused") == ["peers_file changed"] * 2, "once for each change"
    assert len(peers(node)) == 5, "the old ones stay"
    assert "cannot be read" in ask(node, "status")["config"]["problems"][0]
    share(bad, me + own)
    wait_until(lambda: peers(node) == {"h1"}, SLOW_S, "and it is taken when it is back")
    wait_until(lambda: ready(node), READY_S, "h1 is probed")
