"""Loading costs in proportion to the number of peers: twice the peers, twice the work."""

import sys

import pytest

from fabricd.config.digest import changed_keys, config_hash, policy_hash
from fabricd.config.loader import ConfigError, load, parse
from fabricd.config.source import Candidate, ConfigSource
from fabricd.detect import mesh
from fabricd.probes.peer_index import PeerIndex
from lab.inputs.peer_list import peer_list, peer_table
from telemetry.service.toml_lines import key_lines

HEAD = "".join(
    f'[[links]]\nnetdev = "rail{r}"\nrail = {r}\naddress = "10.9.{r}.1"\n' for r in range(4)
)
FEW = 60


def text(hosts, extra=""):
    return f'[host]\nname = "h"\n{extra}{HEAD}{peer_list(hosts, rails=4)}'


def calls(work):
    """Calls of functions, of Python and of C, while ``work`` runs."""
    count = 0

    def each(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(each)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Watched(str):
    """Counts the characters that are searched or copied by its methods: in C these are no calls."""

    read = 0

    def count(self, sub, *span):
        """As ``str``; all between the bounds is read."""
        self.read += len(range(*slice(*span).indices(len(self)))) if len(span) == 2 else len(self)
        return super().count(sub, *span)

    def __getitem__(self, index):
        """As ``str``; a slice is copied."""
        found = super().__getitem__(index)
        self.read += len(found)
        return found

    def splitlines(self, *options):
        """As ``str``."""
        self.read += len(self)
        return super().splitlines(*options)


def assert_linear(work):
    """``work(hosts)`` makes what is to be done for so many hosts."""
    work(FEW)()  # What is loaded or cached at first.
    few, many = calls(work(FEW)), calls(work(2 * FEW))
    assert many < 2.3 * few


def test_a_good_file_is_loaded_in_linear_work(tmp_path):
    def work(hosts):
        file = tmp_path / f"{hosts}.toml"
        file.write_text(text(hosts))
        return lambda: load(file)

    assert_linear(work)


def test_so_is_one_with_a_problem_at_its_end():
    def work(hosts):
        bad = text(hosts) + '[[peers]]\nhost = "site0"\naddresses = []\n'

        def fails():
            with pytest.raises(ConfigError, match=r"is also peers\[0\].host"):
                parse(bad, "f")

        return fails

    assert_linear(work)


def test_so_are_overrides_that_add_peers_and_change_them(tmp_path):
    def work(hosts):
        etc = tmp_path / str(hosts)
        (etc / "conf.d").mkdir(parents=True, exist_ok=True)
        count = 5 * hosts
        (etc / "fabricd.toml").write_text(text(hosts))
        added = peer_list(count, rails=1, first=1000)
        changed = "".join(peer_table(n, rails=1, shift=5000) for n in range(hosts))
        (etc / "conf.d" / "a.toml").write_text(added + changed + "[prob]\n")

        def fails():
            with pytest.raises(ConfigError, match=r"a.toml:\d+: prob: unknown key"):
                load(etc / "fabricd.toml")

        return fails

    assert_linear(work)


def test_so_are_hashes_and_the_comparison_with_the_old_one():
    def work(hosts):
        old, new = parse(text(hosts), "f"), parse(text(hosts), "f")
        return lambda: (config_hash(new), policy_hash(new), changed_keys(old, new))

    assert_linear(work)


def test_so_is_a_whole_reload_with_the_choice_of_paths(tmp_path):
    def work(hosts):
        file = tmp_path / f"{hosts}.toml"
        file.write_text(text(hosts))
        source = ConfigSource(file, load(file))

        def reload():
            found = source.candidate()
            assert isinstance(found, Candidate)
            config = found.loaded.config
            paths = PeerIndex(config.peers).paths(config, [f"10.9.{r}.1" for r in range(4)])
            assert paths

        return reload

    assert_linear(work)


@pytest.mark.parametrize(
    "written",
    [text(100), text(100).replace("[[peers]]", f"# {'x' * 1000}\n[[peers]]"),
     f'a = """{"x" * 10**5}"""\nb = "{"y" * 10**5}"\n'],
    ids=["peers", "comments", "long strings"],
)  # fmt: skip
def test_no_part_of_a_text_is_read_again_for_each_line(written):
    watched = Watched(written)
    assert key_lines(watched) == key_lines(written)
    assert watched.read < 3 * len(written)


def test_a_scanner_that_counts_the_lines_before_each_key_is_noticed():
    watched = Watched(text(100))
    for at in range(0, len(watched), 100):
        watched.count("\n", 0, at)
    assert watched.read > 100 * len(watched)


def test_paths_are_chosen_once_for_the_same_links(monkeypatch):
    asked = []
    likes = mesh._Near._likes
    monkeypatch.setattr(
        mesh._Near, "_likes", lambda near, *pair: asked.append(pair) or likes(near, *pair)
    )
    config = parse(text(FEW), "f")
    index = PeerIndex(config.peers)
    addresses = [f"10.9.{r}.1" for r in range(4)]
    first = index.paths(config, addresses)
    assert calls(lambda: index.paths(config, addresses)) < 50
    # Who likes this host is asked once of each other host, not once for each rail.
    assert len(asked) == FEW
    fewer = index.paths(config, [None, *addresses[1:]])
    assert len(asked) <= 2 * FEW, "the same for a link without an address, and no more"
    assert fewer == PeerIndex(config.peers).paths(config, [None, *addresses[1:]]) != first
    assert index.paths(config, addresses) == first
    assert PeerIndex(config.peers).paths(config, addresses) == first
