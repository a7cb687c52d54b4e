"""conf.d: later files win, errors name the file, hashes follow what is in effect."""

import json

import pytest
from typer.testing import CliRunner

from fabricd import daemon
from fabricd.cli import app
from fabricd.config.loader import ConfigError, config_hash, load, policy_hash
from fabricd.config.source import ConfigSource, changed_keys

MAIN = """\
[host]
name = "h"
[hold]
hold_down_s = 2.0
[[links]]
netdev = "rail0"
rail = 0
[[links]]
netdev = "rail1"
rail = 1
[[peers]]
host = "a"
addresses = [{ rail = 0, address = "10.0.0.2" }]
"""


@pytest.fixture
def etc(tmp_path):
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "fabricd.toml").write_text(MAIN)

    def write(**files):
        for name, text in files.items():
            (tmp_path / "conf.d" / (name.replace("_", "-") + ".toml")).write_text(text)
        return tmp_path / "fabricd.toml"

    return write


def problems(path):
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [(p.file.rpartition("/")[2], p.line, p.key, p.text) for p in caught.value.problems]


def test_later_files_win_key_by_key(etc):
    config = load(
        etc(
            f10_a="[hold]\nprobation_s = 5\n[probe]\nmisses = 4\n",
            f20_b="[probe]\nmisses = 5\n",
        )
    )
    assert (config.hold.hold_down_s, config.hold.probation_s) == (2.0, 5)
    assert config.probe.misses == 5


def test_links_and_peers_merge_by_name_and_are_added(etc):
    config = load(
        etc(
            a='[[links]]\nnetdev = "rail1"\ngroup = "back"\n'
            '[[peers]]\nhost = "b"\naddresses = [{ rail = 0, address = "10.0.0.3" }]\n',
            b='[[peers]]\nhost = "a"\naddresses = [{ rail = 0, address = "10.0.0.9" }]\n',
        )
    )
    assert [(x.netdev, x.rail, x.group) for x in config.links] == [
        ("rail0", 0, None), ("rail1", 1, "back")
    ]  # fmt: skip
    assert [(p.host, str(p.addresses[0].address)) for p in config.peers] == [
        ("a", "10.0.0.9"), ("b", "10.0.0.3")
    ]  # fmt: skip


def test_the_same_name_twice_in_one_file_is_an_error_still(etc):
    found = problems(
        etc(a='[[links]]\nnetdev = "x"\nrail = 5\n[[links]]\nnetdev = "x"\nrail = 6\n')
    )
    assert found == [("a.toml", 5, "links[3].netdev", "x is also links[2].netdev; "
                      "allowed: each netdev once")]  # fmt: skip


def test_errors_name_the_file_that_has_them_all_at_once(etc):
    main = etc(
        a="[probe]\nport = 0\n", b='[hold]\n\nhold = 1\n[[links]]\nnetdev = "rail0"\nrail = 1\n'
    )
    assert [x[:3] for x in problems(main)] == [
        ("fabricd.toml", 10, "links[1].rail"),
        ("a.toml", 2, "probe.port"),
        ("b.toml", 3, "hold.hold"),
    ]


def test_an_override_of_a_wrong_value_heals_it_and_of_a_good_one_breaks_it(etc):
    main = etc(a="[probe]\nport = 0\n", b="[probe]\nport = 9300\n")
    assert load(main).probe.port == 9300
    etc(c="[hold]\nhold_down_s = 'x'\n")
    assert problems(main)[0][:3] == ("c.toml", 2, "hold.hold_down_s")


def test_syntax_of_every_file_is_told(etc):
    found = problems(etc(a="[probe\n", b="x = \n"))
    assert [x[:3] for x in found] == [("a.toml", 1, "(syntax)"), ("b.toml", 1, "(syntax)")]


def test_what_is_no_override_is_not_read(etc, tmp_path):
    main = etc()
    for name in (".hidden.toml", "x.toml.rpmsave", "y.toml~", "README"):
        (tmp_path / "conf.d" / name).write_text("garbage [")
    load(main)
    (tmp_path / "conf.d" / "z.toml").mkdir()
    assert problems(main)[0][0] == "z.toml"


def test_a_table_where_a_value_was_is_told_where_it_stands(etc):
    assert problems(etc(a="host = 3\n"))[0][:3] == ("a.toml", 1, "host")


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ('[host]\ncpus = "3-1"\n', "host.cpus", '"0-1,8", "housekeeping"'),
        ('[detectors]\noff = ["nose"]\n', "detectors.off[0]", "out of: carrier"),
        ('[control]\nadmin_group = "A B"\n', "control.admin_group", "a group of this system"),
        ('[[links]]\nnetdev = "rail0"\ngroup = "A"\n', "links[0].group", "lower-case letters"),
    ],
)
def test_new_keys_say_what_is_allowed(etc, text, key, allowed):
    ((_, _, where, said),) = problems(etc(a=text))
    assert where == key
    assert allowed in said


def test_hashes_follow_what_is_in_effect(etc):
    main = etc()
    before = load(main)
    etc(a="# a comment\n[hold]\nhold_down_s = 2\n")
    assert config_hash(load(main)) == config_hash(before)
    etc(a='[[peers]]\nhost = "b"\naddresses = [{ rail = 0, address = "10.0.0.3" }]\n')
    other = load(main)
    assert config_hash(other) != config_hash(before)
    assert policy_hash(other) == policy_hash(before), "who the peers are is no policy"
    etc(a="[hold]\nhold_down_s = 3\n")
    assert policy_hash(load(main)) != policy_hash(before)


def test_a_bad_reload_keeps_the_old_and_says_why(etc):
    main = etc()
    source = ConfigSource(main, load(main))
    digest = source.hash
    etc(a="[hold]\nhold_down_s = 0\n")
    with pytest.raises(ConfigError):
        source.reload()
    assert (source.config.hold.hold_down_s, source.hash) == (2.0, digest)
    assert "a.toml:2: hold.hold_down_s" in source.document()["problems"][0]
    etc(a='[host]\nname = "other"\n')
    with pytest.raises(ConfigError, match="cannot change without a restart; allowed: h"):
        source.reload()
    old = source.config
    etc(a="[hold]\nhold_down_s = 3\n[detectors]\noff = ['loss']\n")
    assert changed_keys(old, source.reload()) == ["detectors.off", "hold.hold_down_s"]
    assert (source.document()["problems"], source.refused, source.reloads) == ([], 2, 1)
    assert source.hash != digest


def test_config_check_reads_the_overrides_too(etc, capsys):
    main = etc(a="[hold]\nhold_down_s = 3\n")
    good = CliRunner().invoke(app, ["config", "check", str(main)])
    assert good.exit_code == 0
    assert "a.toml" in good.stdout
    assert config_hash(load(main)) in good.stdout
    etc(b="[hold]\nhold_down_s = 0\n")
    bad = CliRunner().invoke(app, ["config", "check", str(main), "--json"])
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["problems"][0]["file"].endswith("conf.d/b.toml")
    assert daemon.main(["--config", str(main), "--check"]) == 2
    assert "conf.d/b.toml:2: hold.hold_down_s" in capsys.readouterr().err


def test_a_file_without_end_is_a_problem_of_that_file(etc, monkeypatch):
    path = etc(a="[hold]\nhold_down_s = 3.0\n")
    (path.parent / "conf.d" / "b.toml").symlink_to("/dev/zero")
    monkeypatch.setattr("fabricd.config.loader.MAX_BYTES", 1000)
    assert problems(path) == [("b.toml", 0, "(file)", "cannot be read: longer than 1000 bytes")]
