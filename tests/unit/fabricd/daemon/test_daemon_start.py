"""Start and command line without a daemon: exit codes, files, units, logs, state taken over."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabricd import daemon
from fabricd.cli import app
from fabricd.cli.base import parse_since
from fabricd.links.address_choice import AddressChoice
from fabricd.links.inventory import Inventory
from fabricd.steer.modes import Mode, Modes
from fabricd.timeline.restart_state import open_store, restore
from telemetry.events import Event, EventKind
from telemetry.timeline import Retention, Timeline

REPO = Path(__file__).resolve().parents[4]
GOOD = '[[links]]\nnetdev = "rail0"\nrail = 0\n'
run = CliRunner().invoke


@pytest.fixture
def files(tmp_path):
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "bad.toml").write_text(GOOD + "[probe]\nport = 0\nx = 1\n")
    return tmp_path


# -- fabricd --check, fabricctl config check


def test_check(files, capsys):
    assert daemon.main(["--config", str(files / "good.toml"), "--check"]) == 0
    assert "valid" in capsys.readouterr().out
    assert daemon.main(["--config", str(files / "bad.toml"), "--check"]) == 2
    text = capsys.readouterr().err
    assert f"{files}/bad.toml:5: probe.port: got 0; allowed: an integer from 1 to 65535" in text
    assert f"{files}/bad.toml:6: probe.x: unknown key" in text


def test_bad_configuration_stops_the_start(files, capsys):
    assert daemon.main(["--config", str(files / "bad.toml")]) == 2
    assert ":5: probe.port" in capsys.readouterr().err


def test_config_check_command(files):
    good = run(app, ["config", "check", str(files / "good.toml")])
    assert good.exit_code == 0
    bad = run(app, ["config", "check", str(files / "bad.toml"), "--json"])
    assert bad.exit_code == 1
    problems = json.loads(bad.stdout)["problems"]
    assert [(p["line"], p["key"]) for p in problems] == [(5, "probe.port"), (6, "probe.x")]


def test_the_example_file_is_valid():
    example = str(REPO / "systemd/examples/fabricd.toml")
    assert run(app, ["config", "check", example]).exit_code == 0


# -- fabricctl


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["links"],
        ["timeline"],
        ["events"],
        ["promote", "steer", "--yes"],
        ["drain", "rail0"],
        ["undrain", "rail0"],
        ["explain", "rail0"],
        ["reload"],
        ["maintenance", "host", "--for", "5m"],
        ["detector", "list"],
        ["detector", "off", "loss"],
        ["detector", "on", "loss"],
    ],
)
def test_commands_without_a_daemon_fail_with_a_clear_text(tmp_path, command):
    result = run(app, [*command, "--socket", str(tmp_path / "none.sock")])
    assert result.exit_code == 1
    assert "is fabricd running?" in result.stderr


@pytest.mark.parametrize(
    "command",
    [["nonsense"], ["promote", "sideways"], ["timeline", "--since", "now"],
     ["timeline", "--limit", "-1"], ["links", "--what"], ["drain"],
     ["drain", "rail0", "--for", "soon"], ["drain", "rail0", "--wait", "x"],
     ["maintenance", "host"], ["maintenance", "host", "--for", "5m", "--end"],
     ["detector", "off", "loss", "--for", "-5m"], ["key", "rotate"]],
)  # fmt: skip
def test_wrong_usage_is_exit_2(tmp_path, command):
    assert run(app, command).exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "links",
        "timeline",
        "events",
        "promote",
        "version",
        "config check",
        "config show",
        "drain",
        "undrain",
        "explain",
        "reload",
        "maintenance",
        "detector off",
        "detector on",
        "detector list",
        "support-bundle",
        "check",
    ],
)
def test_help_shows_an_example(command):
    result = run(app, [*command.split(), "--help"], env={"COLUMNS": "120", "TERM": "dumb"})
    assert result.exit_code == 0
    assert f"Example: fabricctl {command}" in re.sub(r"\s+", " ", result.stdout)
    assert "--json" in result.stdout


def test_since():
    assert parse_since("90s", 10**12) == 910 * 10**9
    assert parse_since("1.5", 0) == 1_500_000_000
    assert parse_since("2h", 7200 * 10**9) == 0


# -- modes


def test_mode_is_durable_and_migrate_is_refused(tmp_path):
    modes = Modes(tmp_path / "mode", tmp_path / "STOP")
    assert modes.effective is Mode.OBSERVE, "a fresh install observes"
    modes.promote(Mode.STEER)
    with pytest.raises(ValueError, match="escalation"):
        modes.promote(Mode.MIGRATE)
    assert Modes(tmp_path / "mode", tmp_path / "STOP").effective is Mode.STEER


@pytest.mark.parametrize("content", ["", "sideways\n", "\xff", "steer steer"])
def test_mode_file_that_makes_no_sense_means_observe(tmp_path, content):
    (tmp_path / "mode").write_text(content, encoding="latin-1")
    assert Modes(tmp_path / "mode", tmp_path / "STOP").effective is Mode.OBSERVE


def test_stop_file_of_any_kind(tmp_path):
    (tmp_path / "mode").write_text("steer\n")
    modes = Modes(tmp_path / "mode", tmp_path / "STOP")
    for make in (lambda p: p.touch(), lambda p: p.mkdir(), lambda p: p.symlink_to("nowhere")):
        make(tmp_path / "STOP")
        assert modes.check_stop()
        assert modes.effective is Mode.OBSERVE
        path = tmp_path / "STOP"
        path.rmdir() if path.is_dir() else path.unlink()
        assert modes.check_stop()
        assert modes.effective is Mode.STEER


# -- what is taken over


def flap(count, down_count, **more):
    data = {"ifindex": 3, "down_count": down_count, "carrier": False} | more
    return Event(EventKind.FLAP, 1, 1, link="rail0", count=count, data=data)


async def taken_over(path, boot="b"):
    opener = open_store(path, "h", Retention())
    store, document, ledger, totals = await restore(opener, boot)
    if store is not None:
        store.close()
    return document, ledger, totals


async def test_newest_flap_row_corrects_an_older_document(tmp_path):
    path = tmp_path / "t.db"
    with Timeline(path, host="h", boot="b") as timeline:
        mark = {"boot_id": "b", "marks": {"rail0": [3, 10, True]}}
        timeline.set_state("carrier", mark)
        timeline.append([flap(2, 12), flap(3, 15)])
    _, ledger, totals = await taken_over(path)
    assert ledger.mark("rail0").down_count == 15
    assert totals == {"rail0": 5}


async def test_rows_of_another_boot_or_without_sense_are_not_used(tmp_path):
    path = tmp_path / "t.db"
    with Timeline(path, host="h", boot="old") as timeline:
        timeline.append([flap(2, 12)])
        timeline.set_state("daemon", {"boot_id": "old", "engine": {}})
        timeline.set_state("carrier", ["garbage"])
    document, ledger, totals = await taken_over(path)
    assert ledger.mark("rail0") is None
    assert document == {"boot_id": "old", "engine": {}}, "damping outlives a boot"
    assert totals == {"rail0": 2}, "the total goes on over boots"


async def test_broken_or_unreachable_file_starts_with_nothing(tmp_path):
    path = tmp_path / "t.db"
    path.write_bytes(b"garbage" * 1000)
    document, ledger, totals = await taken_over(path)
    assert (document, totals) == ({}, {})
    (tmp_path / "file").write_text("")
    document, ledger, totals = await taken_over(tmp_path / "file" / "t.db")
    assert (document, totals, ledger.mark("rail0")) == ({}, {}, None)


# -- inventory from netlink messages


def link(name, index, flags=1, event="RTM_NEWLINK", **attrs):
    return {"event": event, "index": index, "flags": flags,
            "attrs": [("IFLA_IFNAME", name), ("IFLA_CARRIER", 1), *attrs.items()]}  # fmt: skip


def address(index, text, event="RTM_NEWADDR", scope=0):
    key = "IFA_ADDRESS" if ":" in text else "IFA_LOCAL"
    return {"event": event, "index": index, "scope": scope, "attrs": [(key, text)]}


def test_hot_plug_and_another_index():
    inv = Inventory()
    assert inv.take(link("rail0", 5)) == "rail0"
    inv.take(address(5, "fd00::1"))
    assert inv.address_of("rail0") == "fd00::1"
    assert inv.take(address(5, "10.0.0.1")) == "rail0"
    inv.take(address(5, "fe80::1", scope=253))
    assert inv.address_of("rail0") == "10.0.0.1", "IPv4 first, global only"
    inv.take(link("rail0", 9))
    assert inv.address_of("rail0") is None, "a new device has no address yet"
    inv.take(link("rail0", 5, event="RTM_DELLINK"))
    assert inv.devices["rail0"].ifindex == 9, "a late message about the old one"
    inv.take(link("rail0", 9, event="RTM_DELLINK"))
    assert "rail0" not in inv.devices


def test_rename_and_address_removal():
    inv = Inventory()
    inv.take(link("eth7", 5))
    inv.take(address(5, "10.0.0.1"))
    inv.take(link("rail0", 5))
    assert list(inv.devices) == ["rail0"]
    assert inv.address_of("rail0") == "10.0.0.1"
    inv.take(address(5, "10.0.0.1", event="RTM_DELADDR"))
    assert inv.address_of("rail0") is None


def test_the_address_in_use_stays_and_which_others_there_are_is_said():
    inv = Inventory()
    inv.take(link("rail0", 5))
    inv.take(address(5, "fd00::2"))
    assert inv.choice_of("rail0") == AddressChoice("fd00::2")
    inv.take(address(5, "fd00::1") | {"flags": 0x08})
    assert inv.choice_of("rail0") == AddressChoice("fd00::2"), "another host has it (DAD)"
    inv.take(address(5, "fd00::1"))
    note = "has fd00::1, fd00::2: fd00::2 is used"
    assert inv.choice_of("rail0") == AddressChoice("fd00::2", note)
    inv.clear()  # netlink lost messages: all is asked for anew
    for message in (link("rail0", 5), address(5, "fd00::1"), address(5, "fd00::2")):
        inv.take(message)
    assert inv.address_of("rail0") == "fd00::2"
    inv.take(address(5, "fd00::2", event="RTM_DELADDR"))
    assert inv.choice_of("rail0") == AddressChoice("fd00::1")
    inv.take(link("rail0", 5, event="RTM_DELLINK"))
    inv.take(link("rail0", 5))
    inv.take(address(5, "fd00::1"))
    inv.take(address(5, "fd00::0"))
    assert inv.address_of("rail0") == "fd00::", "a new device"


def test_an_address_of_two_prefixes_is_gone_with_the_last():
    inv = Inventory()
    inv.take(link("rail0", 5))
    wide, narrow = ({"prefixlen": 24}, {"prefixlen": 32})
    inv.take(address(5, "10.0.0.1") | wide)
    inv.take(address(5, "10.0.0.1") | narrow)
    inv.take(address(5, "10.0.0.1", event="RTM_DELADDR") | narrow)
    assert inv.address_of("rail0") == "10.0.0.1"
    inv.take(address(5, "10.0.0.1", event="RTM_DELADDR") | wide)
    assert inv.choice_of("rail0") == AddressChoice(None, "has no address")


@pytest.mark.parametrize(
    "message", [{}, {"event": "RTM_NEWLINK"}, {"event": "RTM_NEWLINK", "attrs": 3}, 7,
                {"event": "RTM_NEWADDR", "index": "x", "scope": 0, "attrs": [("IFA_LOCAL", "?")]}],
)  # fmt: skip
def test_messages_that_make_no_sense_raise_only_what_is_caught(message):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Inventory().take(message)


# -- systemd


UNITS = sorted((REPO / "systemd").rglob("*.service"))
MOUNTS = {"fabric-netns@.service"}
"""They enter a namespace and mount there, which takes root, and end at once."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_exposure(unit):
    if unit.name in MOUNTS:
        assert "ExecStart=/usr/bin/nsenter" in unit.read_text()
        assert "Type=oneshot" in unit.read_text()
        return
    assert exposure(unit) <= 2.5


def test_the_clock_service_may_read_of_which_boot_it_is():
    """ProcSubset=pid (systemd.exec(5)) hides /proc/sys and /proc/cpuinfo, which it goes by."""
    unit = (REPO / "systemd" / "fabric-clock.service").read_text()
    assert not re.search(r"^ProcSubset=pid", unit, re.MULTILINE)


def exposure(unit):
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", str(unit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert score, done.stderr
    return float(score[1])


def test_the_stats_mount_hides_no_directory_that_is_there_already(tmp_path):
    """A container has it, with or without a job's page in it at the moment."""
    unit = (REPO / "systemd/run-fabricd-stats.mount").read_text()
    stats = tmp_path / "stats"
    conditions = [
        line.replace("/run/fabricd/stats", str(stats))
        for line in unit.splitlines()
        if line.startswith("Condition")
    ]

    def mounts():
        done = subprocess.run(
            ["systemd-analyze", "condition", *conditions],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Conditions " in done.stderr + done.stdout, done
        return done.returncode == 0

    assert mounts(), "at boot"
    stats.mkdir()
    assert not mounts(), "empty"
    (stats / "1-5.page").touch()
    assert not mounts()


def test_exposure_of_a_host_with_ptp_masters(tmp_path):
    unit = tmp_path / "fabric-clock.service"
    added = (REPO / "systemd/examples/fabric-clock-ptp.conf").read_text()
    unit.write_text((REPO / "systemd/fabric-clock.service").read_text() + added)
    assert exposure(REPO / "systemd/fabric-clock.service") < exposure(unit) <= 2.5


@pytest.mark.parametrize(
    ("unit", "limit"), [("fabricd", 2.5), ("fabric-prober", 3.5), ("fabric-clock", 2.5)]
)
def test_templates_for_a_pods_namespace_are_as_closed_as_the_units(unit, limit, tmp_path):
    units = REPO / "systemd"
    script = str(units / "netns" / "units.sed")
    made = subprocess.run(
        ["sed", "-E", "-f", script, str(units / f"{unit}.service")],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    # Nothing of the host's own is left in it, and the namespace is entered by who has a network.
    assert not re.search(r"/run/fabricd[/ \n]|fabricd-metrics|fabricd-stats|fabric-prober\.service"
                         r"|=fabricd$|/fabricd/fabricd.t",
                         re.sub(r"^(User|Group)=.*\n", "", made, flags=re.MULTILINE),
                         re.MULTILINE)  # fmt: skip
    assert ("NetworkNamespacePath=" in made) == ("PrivateNetwork=yes" not in made)
    template = tmp_path / f"{unit}@.service"
    template.write_text(made)
    assert exposure(template) <= limit


LOG = """
from telemetry.service import logs
import structlog
logs.setup(style={style!r})
structlog.get_logger().warning("two words", a=1, b="x y", c='q"')
structlog.get_logger().debug("not shown")
"""


def logged(style, **env):
    done = subprocess.run(
        [sys.executable, "-c", LOG.format(style=style)], capture_output=True, text=True,
        check=True, timeout=60, cwd=REPO, env={"PATH": "/usr/bin:/bin", **env},
    )  # fmt: skip
    return done.stderr.splitlines()


def test_logfmt_json_and_journald_priorities():
    plain = logged("auto")
    assert len(plain) == 1
    assert re.match(r'timestamp=\S+ level=warning event="two words" a=1 b="x y"', plain[0])
    journal = logged("auto", JOURNAL_STREAM="9:9")
    assert journal[0].startswith('<4>level=warning event="two words"')
    row = json.loads(logged("json")[0])
    assert (row["event"], row["a"], row["c"]) == ("two words", 1, 'q"')
