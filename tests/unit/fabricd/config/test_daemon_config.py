"""Configuration: every kind of error, with the exact line and what is allowed."""

import contextlib
import socket
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.config.loader import Config, ConfigError, load, parse
from fabricd.probes.plan import probe_config
from telemetry.service.toml_lines import key_lines, line_of

GOOD = """\
[host]
name = "h0"

[[links]]
netdev = "rail0"
rail = 0
address = "10.0.0.1"

[[links]]
netdev = "rail1"
rail = 1

[[peers]]
host = "h1"
addresses = [{ rail = 0, address = "10.0.0.2" },
             { rail = 1, address = "10.1.0.2" }]
"""


def problems(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.toml")
    assert all(p.file == "f.toml" for p in caught.value.problems)
    return [(p.line, p.key, p.text) for p in caught.value.problems]


def test_defaults_are_those_of_the_architecture_page():
    config = parse(GOOD, "f.toml")
    assert config.probe.link_interval_ms == 10
    assert config.probe.misses == 3
    assert config.probe.port == 9200
    assert config.damping.suppress == 2500
    assert config.hold.hold_down_s == 2.0
    assert config.steer.max_probe_share == 0.5
    assert config.metrics.listen == "127.0.0.1:19200"
    assert config.links[1].address is None


def test_is_frozen():
    config = parse(GOOD, "f.toml")
    with pytest.raises(Exception, match="frozen"):
        config.probe.misses = 9


ONE = [
    # (appended to GOOD or replacing in it, line, key, part of the text)
    ("[probe]\nlink_interval_ms = 0\n", 18, "probe.link_interval_ms", "integer from 1 to 10000"),
    ('[probe]\nport = "x"\n', 18, "probe.port", "an integer from 1 to 65535"),
    ("[probe]\nmisses = true\n", 18, "probe.misses", "an integer from 2 to 100"),
    ("[probe]\nmisses = 3.5\n", 18, "probe.misses", "got 3.5"),
    ("[probe]\n\n# so\nmissess = 3\n", 20, "probe.missess", "unknown key; allowed here: link_"),
    ("[prob]\n", 17, "prob", "unknown key; allowed here: host, paths, probe"),
    ("[clock]\nptp_domain = 240\n", 18, "clock.ptp_domain", "an integer from 0 to 239"),
    ('[clock]\nptp_masters = ["x"]\n', 18, "clock.ptp_masters[0]", "up to 8 unicast addresses"),
    ('[clock]\nptp_masters = ["224.0.1.129"]\n', 18, "clock.ptp_masters[0]", "up to 8 unicast"),
    ('[clock]\nptp_masters = ["10.9.0.1", "10.9.0.1"]\n', 18, "clock.ptp_masters[1]",
     "also ptp_masters[0]"),
    ('[clock]\nptp_masters = ["fe80::1"]\n', 18, "clock.ptp_masters[0]", "with ptp_interface"),
    ("[hold]\nhold_down_s = nan\n", 18, "hold.hold_down_s", "a number from 0.01 to 3600"),
    ("[hold]\nhold_down_s = true\n", 18, "hold.hold_down_s", "got True"),
    ("[clock]\nleast_way_ns = -1\n", 18, "clock.least_way_ns", "0 to 1000000 (nanoseconds)"),
    ('[clock]\nchrony_socket = "chrony.sock"\n', 18, "clock.chrony_socket", "absolute path of a"),
    ('[clock]\nhardware_stamps = "on"\n', 18, "clock.hardware_stamps", '"off" or "auto"'),
    ("[clock]\npriority = 256\n", 18, "clock.priority", "an integer from 0 to 255"),
    ("[broker]\nport = 1\n", 17, "broker.host", "missing; needed: a host name, or an IP"),
    ('[broker]\nhost = "b"\nport = 0\n', 19, "broker.port", "an integer from 1 to 65535"),
    ('[broker]\nhost = "b c"\n', 18, "broker.host", "a host name, or an IP address"),
    ('[broker]\nhost = "b"\nprotocol = "4"\n', 19, "broker.protocol", '"3.1.1" or "5"'),
    ('[broker]\nhost = "b"\nprefix = "a/#"\n', 19, "broker.prefix", "1 to 8 topic levels"),
    ('[broker]\nhost = "b"\nkeepalive_s = 1\n', 19, "broker.keepalive_s", "from 2 to 600"),
    ('[broker]\nhost = "b"\nkey_file = "/k"\n', 19, "broker.key_file", "with cert_file"),
    ('[broker]\nhost = "b"\ncert_file = "/c"\n', 19, "broker.cert_file", "with ca_file"),
    ('[broker]\nhost = "b"\npassword_file = "/p"\n', 19, "broker.password_file", "username"),
    ('[broker]\nhost = "192.0.2.1"\n', 18, "broker.host", "is public; allowed without TLS"),
    ('[broker]\nhost = "b"\ntls = true\n', 19, "broker.tls", "unknown key; allowed here: host"),
    ("[steer]\nmax_probe_share = 1.5\n", 18, "steer.max_probe_share", "a number from 0 to 1"),
    ('[paths]\nrun_dir = "run"\n', 18, "paths.run_dir", "an absolute path"),
    ('[metrics]\nlisten = "host"\n', 18, "metrics.listen", '"HOST:PORT"'),
    ('[metrics]\nlisten = "h:99999"\n', 18, "metrics.listen", "a port from 1 to 65535"),
    ("[damping]\nsuppress = 10\nreuse = 10\n", 19, "damping.reuse", "reuse < suppress"),
    ("[damping]\nsuppress = 10\n", 18, "damping.suppress", "reuse (1000) must lie below"),
    ("[damping]\nmax_transitions = 2\n", 18, "damping.max_transitions", "0 (no limit), or an"),
    ("probe.port = 0\n", 17, "peers[0].probe", "unknown key"),
    ("[[links]]\nrail = 3\n", 17, "links[2].netdev", "missing; needed: a network interface"),
    ('[[links]]\nnetdev = "rail0"\nrail = 3\n', 18, "links[2].netdev", "also links[0].netdev"),
    ('[[links]]\nnetdev = "r"\nrail = 1\n', 19, "links[2].rail", "also links[1].rail"),
    ('[[links]]\nnetdev = "r"\nrail = 32\n', 19, "links[2].rail", "an integer from 0 to 31"),
    ('[[links]]\nnetdev = "a b"\nrail = 3\n', 18, "links[2].netdev", "1 to 15 bytes"),
    (
        '[[links]]\nnetdev = "r"\nrail = 3\naddress = "10.0.0.1"\n',
        20, "links[2].address", "also links[0].address",
    ),
    (
        '[[links]]\nnetdev = "r"\nrail = 3\naddress = "10.0.0.256"\n',
        20, "links[2].address", "a unicast IPv4 or IPv6 address",
    ),
    (
        '[[links]]\nnetdev = "r"\nrail = 3\naddress = "224.0.0.1"\n',
        20, "links[2].address", "a unicast IPv4 or IPv6 address",
    ),
    ('[[peers]]\nhost = "h1"\naddresses = []\n', 18, "peers[1].host", "also peers[0].host"),
    ('[[peers]]\nhost = "h2"\naddresses = []\n', 19, "peers[1].addresses", "1 to 64 tables"),
    ('[[peers]]\nhost = "h2"\naddresses = [3]\n', 19, "peers[1].addresses[0]", "keys rail, addr"),
    (
        '[[peers]]\nhost = "h0"\naddresses = [{ rail = 0, address = "10.0.0.3" }]\n',
        19, "peers[1].addresses[0].address", "this host's link of rail 0 has 10.0.0.1",
    ),
    (
        '[[peers]]\nhost = "h2"\naddresses = [\n  { rail = 0, address = "10.0.0.2" },\n]\n',
        20, "peers[1].addresses[0].address", "10.0.0.2 stands twice",
    ),
    (
        '[[peers]]\nhost = "h2"\naddresses = [\n  { rail = 0, address = "10.0.0.3" },\n'
        '  { rail = 0, address = "10.0.0.4" },\n]\n',
        21, "peers[1].addresses[1].rail", "one IPv4 and one IPv6",
    ),
    (
        '[[peers]]\nhost = "h2"\naddresses = [\n  { rail = 0, address = "fd00::2" },\n]\n',
        20, "peers[1].addresses[0].address", "the local link of rail 0 has an IPv4",
    ),
    (
        '[[peers]]\nhost = "h2"\naddresses = [\n  { rail = 0, address = "10.0.0.3", x = 1 },\n]\n',
        20, "peers[1].addresses[0].x", "unknown key; allowed here: rail, address",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("extra", "line", "key", "text"), ONE)
def test_one_error_names_line_key_and_what_is_allowed(extra, line, key, text):
    found = problems(GOOD + extra)
    assert [(at, name) for at, name, _ in found if name == key] == [(line, key)], found
    assert any(text in what for _, name, what in found if name == key), found


OTHERS = ('[broker]\nhost = "b"\n', GOOD[GOOD.index("[[peers]]") :], '[paths]\npeers_file = "/p"\n')


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("name", ["localhost", "LocalHost", "localhost.localdomain", "localhost6"])
def test_a_name_that_every_machine_has_is_refused_where_other_hosts_are_known(name, others):
    links = GOOD[GOOD.index("[[links]]") : GOOD.index("[[peers]]")]
    found = problems(f'[host]\nname = "{name}"\n\n{links}{others}')
    assert (2, "host.name") in [(line, key) for line, key, _ in found], found
    assert any("what every machine calls itself" in what for *_, what in found)
    assert parse(f'[host]\nname = "{name}"\n\n{links}', "f.toml"), "alone it may have any name"


@pytest.mark.parametrize(("machine", "text"), [
    ("localhost", "every machine"), ("(none)", "is no host name"), ("", "is no host name"),
])  # fmt: skip
def test_the_machines_own_name_is_looked_at_too(monkeypatch, machine, text):
    monkeypatch.setattr(socket, "gethostname", lambda: machine)
    (found,) = [
        one for one in problems(GOOD.replace('name = "h0"', 'cpus = ""')) if one[1] == "host.name"
    ]
    assert text in found[2]


def test_a_peer_is_not_called_as_every_machine():
    found = problems(GOOD.replace('host = "h1"', 'host = "localhost"'))
    assert [(line, key) for line, key, _ in found] == [(14, "peers[0].host")]


def test_all_errors_at_once_in_order():
    text = GOOD + "[probe]\nport = 0\nmisses = 1\n[steer]\nmax_probe_share = -1\nx = 2\n"
    assert [(line, key) for line, key, _ in problems(text)] == [
        (18, "probe.port"),
        (19, "probe.misses"),
        (21, "steer.max_probe_share"),
        (22, "steer.x"),
    ]


def test_no_links():
    assert problems('[host]\nname = "h0"\n')[0][1:] == (
        "links",
        "missing; needed: 1 to 32 tables [[links]]",
    )


def test_syntax_error_has_its_line():
    line, key, text = problems("[host]\nname = \n")[0]
    assert (line, key) == (2, "(syntax)")
    assert text.endswith("allowed: TOML 1.0")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"[host]\nname = '\xff'\n")
    with pytest.raises(ConfigError, match=r"bad.toml:2: .*not UTF-8"):
        load(tmp_path / "bad.toml")


def test_two_families_on_one_rail_are_allowed():
    text = GOOD.replace(
        '{ rail = 1, address = "10.1.0.2" }',
        '{ rail = 0, address = "fd00::2" }',
    )
    assert len(parse(text, "f").peers[0].addresses) == 2


def test_key_lines_in_odd_places():
    text = (
        'a . "b.c" = """\nx = 1\n"""  # d = 2\n'
        "arr = [ # [\n  1,\n  { x = 'y]', z = [2,\n   3] },\n]\n"
        "[t.'u v']\nk = 2026-01-01 00:00:00\n[[t.list]]\n[t.list.sub]\nq=1\n[[t.list]]\nq=2\n"
    )
    tomllib.loads(text)
    lines = key_lines(text)
    assert lines["a", "b.c"] == 1
    assert lines["arr", 0] == 5
    assert lines["arr", 1, "x"] == 6
    assert lines["arr", 1, "z", 1] == 7
    assert lines["t", "u v", "k"] == 10
    assert lines["t", "list", 0, "sub", "q"] == 13
    assert lines["t", "list", 1, "q"] == 15
    assert line_of(lines, ("arr", 1, "nothing")) == 6
    assert line_of(lines, ("none",)) == 1


def _paths(value, at=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*at, key)
            yield from _paths(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield (*at, index)
            yield from _paths(item, (*at, index))


def test_every_key_of_a_large_file_is_found():
    text = GOOD + "[damping]\n" + "\n".join(f"k{i} = [{i}, {{ a = '#' }}]" for i in range(50))
    assert set(_paths(tomllib.loads(text))) <= set(key_lines(text))


@pytest.mark.patient
@given(st.text())
def test_locator_ends_on_any_text(text):
    key_lines(text)


@given(st.text(alphabet="[]{}=\"'\\#.,\n ab1", max_size=60))
def test_any_text_gives_a_config_or_an_error(text):
    with contextlib.suppress(ConfigError):
        assert isinstance(parse(text, "f"), Config)


def test_hardware_stamps_are_asked_of_the_prober_where_the_configuration_says_so():
    for said, wanted in (("", False), ('[clock]\nhardware_stamps = "auto"\n', True)):
        config = parse(GOOD + said, "f.toml")
        plan = probe_config(config, ["10.0.0.1"] * len(config.links), [])
        assert {link.hw_stamps for link in plan.links} == {wanted}
        assert {link["hw_stamps"] for link in plan.document()["links"]} == {wanted}
