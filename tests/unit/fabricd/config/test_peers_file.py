"""The host's own entry in ``[[peers]]``, and ``peers_file``: a list that all hosts share."""

import hashlib
import ipaddress
import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fabricd import daemon
from fabricd.cli import app
from fabricd.config.addresses import address_text, parse_address
from fabricd.config.loader import ConfigError, config_hash, files_of, load, parse, policy_hash, read
from fabricd.config.peers_file import MAX_BYTES, file_state, read_peers_file
from fabricd.config.source import ConfigSource
from lab.inputs.peer_list import peer_list

LINKS = """\
[[links]]
netdev = "rail0"
rail = 0
address = "10.0.0.1"
[[links]]
netdev = "rail1"
rail = 1
"""


def peer(host, number, rails=(0, 1)):
    entries = ", ".join(f'{{ rail = {r}, address = "10.{r}.0.{number}" }}' for r in rails)
    return f'[[peers]]\nhost = "{host}"\naddresses = [{entries}]\n'


def problems(work):
    with pytest.raises(ConfigError) as caught:
        work()
    return [(p.file.rpartition("/")[2], p.line, p.key, p.text) for p in caught.value.problems]


def of(name, peers):
    return parse(f'[host]\nname = "{name}"\n{LINKS}{peers}', "f.toml")


class Etc:
    """A main file that names peers.toml beside it."""

    def __init__(self, path):
        self.main, self.shared = path / "fabricd.toml", path / "peers.toml"
        self.write()
        self.share(peer("a", 2))

    def write(self, extra="", name="h"):
        self.main.write_text(
            f'[host]\nname = "{name}"\n[paths]\npeers_file = "{self.shared}"\n{LINKS}{extra}'
        )

    def share(self, text):
        self.shared.write_text(text)

    def hosts(self):
        return [peer.host for peer in load(self.main).peers]

    def problems(self):
        return problems(lambda: load(self.main))


@pytest.fixture
def etc(tmp_path):
    return Etc(tmp_path)


# -- the own entry ----------------------------------------------------------------------------


def test_the_own_entry_is_left_out():
    shared = peer("h", 1) + peer("a", 2)
    assert [x.host for x in of("h", shared).peers] == ["a"]


def test_one_list_serves_every_host_and_their_policy_is_one():
    shared = peer("h", 1) + peer("g", 2)
    one = of("h", shared)
    other = parse(f'[host]\nname = "g"\n{LINKS.replace("10.0.0.1", "10.0.0.2")}{shared}', "f.toml")
    assert ([x.host for x in one.peers], [x.host for x in other.peers]) == (["g"], ["h"])
    assert policy_hash(one) == policy_hash(other) == policy_hash(of("h", peer("g", 2)))
    assert config_hash(one) == config_hash(of("h", peer("g", 2))), "with it or without it"


def test_an_own_entry_with_another_address_than_the_links_is_refused():
    listed = peer("a", 2) + peer("h", 7)
    assert problems(lambda: of("h", listed)) == [
        ("f.toml", 15, "peers[1].addresses[0].address",
         "10.0.0.7, but this host's link of rail 0 has 10.0.0.1 in links[0].address; "
         "allowed: 10.0.0.1")
    ]  # fmt: skip
    assert [x.host for x in of("h", peer("h", 7, rails=[1]) + peer("a", 2)).peers] == ["a"], (
        "where the link has no address in the file there is nothing to compare with"
    )
    assert [x.host for x in of("h", peer("h", 7, rails=[5]) + peer("a", 2)).peers] == ["a"]


def test_an_own_entry_of_another_family_is_refused():
    own = '[[peers]]\nhost = "h"\naddresses = [{ rail = 0, address = "fd00::1" }]\n'
    ((_, _, key, text),) = problems(lambda: of("h", own))
    assert (key, "fd00::1, but this host's link" in text) == ("peers[0].addresses[0].address", True)
    both = own.replace("}]", '}, { rail = 0, address = "10.0.0.1" }]')
    assert of("h", both).peers == ()


def test_an_own_entry_is_validated_as_any_other():
    own = '[[peers]]\nhost = "h"\naddresses = [{ rail = 0, address = "10.0.0.1" }, '
    own += '{ rail = 99, address = "10.9.0.1" }]\n'
    assert [x[2] for x in problems(lambda: of("h", own))] == ["peers[0].addresses[1].rail"]
    twice = peer("h", 1) + peer("h", 1)
    found = problems(lambda: of("h", twice))
    assert ("peers[1].host", '"h" is also peers[0].host; allowed: each host once') in [
        (key, text) for _, _, key, text in found
    ]


@pytest.mark.parametrize("local", ["h", "gpu-77094"])
def test_two_hosts_whose_probes_have_one_number_are_refused(local):
    others = peer("gpu-76826", 3) + ("" if local != "h" else peer("gpu-77094", 4))
    ((_, _, key, text),) = problems(lambda: of(local, others))
    assert key == ("peers[1].host" if local == "h" else "peers[0].host")
    assert "have the same number, d9e3846e" in text


def test_another_host_with_this_hosts_address_is_refused_with_the_own_entry_or_without():
    for own in ("", peer("h", 1)):
        found = problems(lambda own=own: of("h", own + peer("a", 1, rails=[0])))
        assert [x[3].partition(",")[0] for x in found] == ["10.0.0.1 stands twice"]


def test_ports_of_this_host_stay_known(tmp_path):
    leaf = '[[topology.leaves]]\nname = "l"\nports = ["h/0", "a/0"]\n'
    assert of("h", peer("h", 1) + peer("a", 2) + leaf).topology.leaves


# -- the file ---------------------------------------------------------------------------------


def test_its_peers_are_added_to_those_of_the_main_file(etc):
    etc.write(peer("b", 3))
    etc.share(peer("h", 1) + peer("a", 2))
    assert etc.hosts() == ["b", "a"]
    loaded = read(etc.main)
    assert loaded.files == (str(etc.main), str(etc.shared))
    assert loaded.peers_file == file_state(str(etc.shared))
    assert files_of(etc.main) == [str(etc.main), str(etc.shared)]


def test_an_override_may_name_it(etc, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(peer("c", 4))
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "a.toml").write_text(f'[paths]\npeers_file = "{other}"\n')
    assert etc.hosts() == ["c"]


def test_a_list_may_be_empty(etc):
    etc.share("# nobody yet\n")
    assert etc.hosts() == []


def test_a_host_in_both_is_refused_and_both_places_are_named(etc):
    etc.write(peer("b", 3) + peer("a", 9))
    etc.share("# shared\n" + peer("a", 2))
    line = etc.main.read_text().splitlines().index('host = "a"') + 1
    assert etc.problems() == [
        ("peers.toml", 3, "peers[0].host",
         f'"a" is also peers[1].host of {etc.main}:{line}; allowed: each host once')
    ]  # fmt: skip
    etc.share(peer("c", 3))
    ((file, at, key, text), _) = etc.problems()
    assert (file, at, key) == ("peers.toml", 3, "peers[0].addresses[0].address")
    assert f"first in peers[0].addresses[0] of {etc.main}:" in text


def test_its_errors_have_its_name_line_and_key(etc):
    etc.write(peer("b", 3))
    bad = 'addresses = [{ rail = 0, address = "10.0.0.4" },\n  { rail = "x" }]\n'
    etc.share(peer("a", 2) + '[[peers]]\nhost = "c"\n' + bad)
    assert [x[:3] for x in etc.problems()] == [
        ("peers.toml", 7, "peers[1].addresses[1].address"),
        ("peers.toml", 7, "peers[1].addresses[1].rail"),
    ]
    etc.write("[prob]\n")
    assert [x[:2] for x in etc.problems()] == [("fabricd.toml", 12), *[("peers.toml", 7)] * 2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[[peers]\n", (1, "(syntax)", "allowed: TOML 1.0")),
        ("peers = 3\n", (1, "peers", "no list of tables; allowed: tables [[peers]]")),
        ("peers = [3]\n", (1, "peers", "no list of tables; allowed: tables [[peers]]")),
        ("\n[probe]\nport = 1\n", (2, "probe", "unknown key; allowed in this file: peers")),
        (b"# \xff\n", (1, "(file)", "not UTF-8; allowed: a TOML file in UTF-8")),
    ],
)
def test_what_is_no_list_of_peers_is_refused(etc, text, found):
    etc.shared.write_bytes(text if isinstance(text, bytes) else text.encode())
    ((file, line, key, said),) = etc.problems()
    assert (file, line, key) == ("peers.toml", *found[:2])
    assert found[2] in said


def test_one_that_cannot_be_read_is_refused_and_who_names_it_is_said(etc, capsys):
    etc.shared.unlink()
    ((file, line, key, text),) = etc.problems()
    assert (file, line, key) == ("peers.toml", 0, "(file)")
    assert text == f"cannot be read: No such file or directory (paths.peers_file of {etc.main}:4)"
    assert daemon.main(["--config", str(etc.main)]) == daemon.EXIT_CONFIG, "no start"
    assert f"{etc.shared}: cannot be read" in capsys.readouterr().err


def test_what_is_no_file_keeps_nobody_waiting(etc):
    etc.shared.unlink()
    os.mkfifo(etc.shared)
    assert "not a regular file" in etc.problems()[0][3]
    etc.shared.unlink()
    etc.shared.mkdir()
    assert "cannot be read" in etc.problems()[0][3]
    etc.shared.rmdir()
    with etc.shared.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    assert "larger than 64 MiB" in etc.problems()[0][3]


def test_a_file_that_changes_while_it_is_read_is_read_again_or_refused(etc, monkeypatch):
    real, reads = os.fstat, []

    def restless(fd):
        reads.append(fd)
        if len(reads) <= busy:
            time.sleep(0.02)  # A kernel's time stamps are of its last tick.
            etc.share(peer("a", 2))  # as long as before
        return real(fd)

    monkeypatch.setattr(os, "fstat", restless)
    busy = 2
    found = read_peers_file(str(etc.shared))
    assert (found.problems, found.state) == ((), file_state(str(etc.shared)))
    assert len(reads) == 4, "twice"
    reads.clear()
    busy = 100
    assert "changes while it is read" in read_peers_file(str(etc.shared)).problems[0].text


def test_a_program_without_peers_does_not_read_it(etc):
    etc.write('[[topology.leaves]]\nname = "l"\nports = ["nobody/0", "h/1"]\n')
    assert [x[2] for x in etc.problems()] == ["topology.leaves[0].ports"]
    etc.shared.unlink()
    assert load(etc.main, shared_peers=False).peers == ()


def test_a_list_that_is_too_long_says_how_long_it_may_be(etc):
    etc.share("#\n" + peer_list(4097, rails=1))
    first = etc.problems()[0]
    assert first[:3] == ("peers.toml", 3, "peers")
    assert "up to 4096 tables [[peers]]" in first[3]


def test_another_path_may_be_given_by_a_reload(etc, tmp_path):
    source = ConfigSource(etc.main, load(etc.main))
    etc.shared = tmp_path / "new.toml"
    etc.write()
    etc.share(peer("n", 5))
    assert [x.host for x in source.reload().peers] == ["n"]
    assert source.document()["files"] == [str(etc.main), str(etc.shared)]


def test_a_bad_list_keeps_the_old_configuration(etc):
    source = ConfigSource(etc.main, load(etc.main))
    etc.share("[[peers]\n")
    with pytest.raises(ConfigError):
        source.reload()
    assert [x.host for x in source.config.peers] == ["a"]
    assert "peers.toml:1: (syntax)" in source.document()["problems"][0]
    assert source.peers_file == file_state(str(etc.shared)), "this version is known"


def test_config_check_names_it(etc):
    good = CliRunner().invoke(app, ["config", "check", str(etc.main)])
    assert (good.exit_code, f"with {etc.shared}" in good.stdout.replace("\n", "")) == (0, True)
    told = json.loads(CliRunner().invoke(app, ["config", "check", str(etc.main), "--json"]).stdout)
    assert (told["files"], told["peers"]) == ([str(etc.main), str(etc.shared)], 1)
    etc.share(peer("a", 2) + peer("a", 2))
    bad = CliRunner().invoke(app, ["config", "check", str(etc.main)])
    assert (bad.exit_code, "peers.toml:5: peers[1].host" in bad.stderr) == (1, True)


# -- addresses --------------------------------------------------------------------------------

PARTS = st.sampled_from(["0", "1", "01", "255", "256", ".", ":", "::", "a", "ffff", "%", "e", " "])


@given(
    st.one_of(
        st.lists(PARTS, max_size=12).map("".join),
        st.ip_addresses().map(str),
        st.text(max_size=12),
        st.tuples(st.ip_addresses(), PARTS).map(lambda pair: f"{pair[0]}{pair[1]}"),
    )
)
def test_addresses_are_those_of_the_library(text):
    try:
        wanted = ipaddress.ip_address(text)
    except ValueError:
        with pytest.raises(ValueError, match="does not appear to be"):
            parse_address(text)
    else:
        assert parse_address(text) == wanted


@given(
    st.one_of(
        st.ip_addresses(),
        # Runs of zeros at every place, and what others write with IPv4 in it.
        st.lists(st.sampled_from([0, 1, 0xFFFF, 0xA00]), min_size=8, max_size=8).map(
            lambda parts: ipaddress.ip_address(":".join(f"{part:x}" for part in parts))
        ),
        st.ip_addresses(v=6).map(lambda address: ipaddress.ip_address(f"{address}%eth0")),
    )
)
def test_addresses_are_written_as_by_the_library(address):
    assert address_text(address) == str(address)


def test_the_hash_is_that_of_the_whole_document():
    six = peer("b", 3).replace("10.0.0.3", "fd00:0::3").replace("10.1.0.3", "::10.0.0.9")
    for peers in ("", peer("a", 2), peer("a", 2) + six.replace("rail = 0", "rail = 7")):
        config = of("h", peers)
        text = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        assert config_hash(config) == hashlib.sha256(text.encode()).hexdigest()[:16]
