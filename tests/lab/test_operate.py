"""What operators do, on real processes: drains, windows, switches, reloads, groups."""

import contextlib
import grp
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import time

import pytest
from test_daemon_faults import (
    READY_S,
    SLOW_S,
    ask,
    page,
    prober_in_use,
    ready,
    rows,
    started,
    states,
    weights,
)

from lab.cluster import wait_until
from lab.faults.catalog import BlackHole, Carrier

pytestmark = pytest.mark.timeout(400)
CTL_S = 200.0
"""A program that is started beside the rest of the tier may wait a minute for a core."""


def ctl(node, *args, uid=None, groups=()):
    command = [sys.executable, "-m", "fabricd.cli", *args]
    env = node.env({"FABRIC_CTL_SOCKET": str(node.run_dir / "ctl.sock")})
    who = {} if uid is None else {"user": uid, "group": uid, "extra_groups": list(groups)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=CTL_S, check=False, env=env, **who
    )


def done(node, *args):
    result = ctl(node, *args)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_drain_undrain_explain_and_a_restart_between(cluster):
    lab = started(cluster)
    node, peer = lab.nodes[0], lab.nodes[1]
    assert "gives it back" in done(node, "drain", "rail1", "--reason", "new optics")
    assert weights(node) == {"rail0": 1000, "rail1": 0}
    refused = ctl(node, "drain", "rail0")
    assert (refused.returncode, "last link that carries" in refused.stderr) == (1, True)
    told = json.loads(done(node, "explain", "rail1", "--json"))
    assert told["rule"]["name"] == "drained"
    assert told["drain"]["reason"] == "new optics"
    assert "drained by uid 0: new optics" in done(node, "explain", "rail1")
    node.restart_daemon()
    wait_until(lambda: states_or_none(node) == "admin", READY_S, "the drain outlives a restart")
    node.daemon.wait_restarted(node.kill_daemon())
    wait_until(lambda: states_or_none(node) == "admin", READY_S, "and kill -9")
    with lab.inject(Carrier("h0:rail0")):
        wait_until(lambda: weights(node) == {"rail0": 0, "rail1": 1000}, SLOW_S, "serves in need")
    wait_until(lambda: weights(node) == {"rail0": 1000, "rail1": 0}, SLOW_S, "drained again")
    done(node, "undrain", "rail1")
    wait_until(lambda: weights(node) == {"rail0": 1000, "rail1": 1000}, SLOW_S, "given back")
    wait_until(
        lambda: [r["reason"] for r in rows(node, kind="operator", link="rail1")]
        == ["drain until taken back: new optics", "drain taken back: new optics"],
        SLOW_S, "both on the timeline",
    )  # fmt: skip
    assert weights(peer) == {"rail0": 1000, "rail1": 1000}


def states_or_none(node, link="rail1"):
    try:
        return states(node)[link]
    except Exception:
        return None


@pytest.mark.nightly
def test_explain_names_evidence_and_rule_of_a_black_hole(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    with lab.inject(BlackHole("h0:rail0")):
        wait_until(lambda: weights(node)["rail0"] == 0, SLOW_S, "steered away")
        told = json.loads(done(node, "explain", "rail0", "--json"))
        assert told["rule"]["name"] == "probe-link"
        assert "misses = 3" in told["rule"]["parameters"]
        blamed = [e for e in told["evidence"] if e["detector"] == "probe-path" and e["against"]]
        assert len(blamed) >= 2
        assert all(e["age_s"] > 0 for e in blamed)
        wait_until(
            lambda: any(
                r["kind"] == "link_state" and r["to"] == "down"
                for r in ask(node, "explain", link="rail0")["history"]
            ),
            SLOW_S, "the transition with its time",
        )  # fmt: skip


@pytest.mark.nightly
def test_a_window_and_a_switch_over_a_restart_and_their_end(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    done(node, "maintenance", "rail1", "--for", "600s", "--reason", "cable")
    done(node, "detector", "off", "probe-link", "--for", "600s")
    node.restart_daemon()
    wait_until(lambda: ready(node), READY_S, "up again")
    for _ in range(4):
        with lab.inject(Carrier("h0:rail1")):
            wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "hard evidence steers")
        wait_until(lambda: weights(node)["rail1"] == 1000, SLOW_S, "and is not damped")
    link = next(x for x in ask(node, "links") if x["netdev"] == "rail1")
    assert (link["penalty"], link["flaps"], link["maintenance"]) == (0, 4, True)
    metrics = node.fetch("http://127.0.0.1:19200/metrics")
    assert 'fabricd_link_maintenance{link="rail1",rail="1"} 1.0' in metrics
    assert 'fabricd_detector_enabled{detector="probe-link"} 0.0' in metrics
    with lab.inject(BlackHole("h0:rail0")):
        time.sleep(2)
        assert weights(node)["rail0"] == 1000, "nobody judges it"
        done(node, "detector", "on", "probe-link")
        wait_until(lambda: weights(node)["rail0"] == 0, SLOW_S, "judged again")
    done(node, "maintenance", "rail1", "--for", "1s")
    wait_until(lambda: not ask(node, "status")["operator"]["maintenance"], SLOW_S, "it ends")
    assert ctl(node, "maintenance", "rail1").returncode == 2


def test_reload_by_command_keeps_the_old_one_and_says_why(cluster):
    lab = started(cluster)
    node = lab.nodes[0]
    digest = ask(node, "status")["config"]["hash"]
    overrides = node.config_path.parent / "conf.d"
    overrides.mkdir()
    (overrides / "50-hold.toml").write_text("[hold]\nhold_down_s = -1\n")
    refused = ctl(node, "reload")
    assert refused.returncode == 1
    assert "50-hold.toml:2: hold.hold_down_s: got -1; allowed" in refused.stderr
    assert ctl(node, "config", "check", str(node.config_path)).returncode == 1
    status = ask(node, "status")["config"]
    assert status["hash"] == digest
    assert "50-hold.toml:2" in status["problems"][0]
    assert "LAST RELOAD REFUSED" in done(node, "status")

    def metrics():
        return node.fetch("http://127.0.0.1:19200/metrics")

    wait_until(
        lambda: "fabricd_config_last_reload_successful 0.0" in metrics(), SLOW_S, "the metric"
    )
    (overrides / "50-hold.toml").write_text("[hold]\nhold_down_s = 0.7\n")
    assert "hold.hold_down_s changed" in done(node, "reload")
    new = ask(node, "status")["config"]["hash"]
    assert new != digest
    assert new in done(node, "config", "check", str(node.config_path))
    wait_until(lambda: f'fabricd_config_info{{hash="{new}"}} 1.0' in metrics(), SLOW_S, "hash")
    assert ready(node)


@pytest.mark.nightly
def test_a_group_is_promoted_alone_after_its_past_was_shown(cluster):
    links = [{"netdev": f"rail{r}", "rail": r, "group": f"g{r}"} for r in (0, 1)]
    lab = started(cluster, mode="observe", links=links)
    node = lab.nodes[0]
    for rail in ("rail0", "rail1"):
        with lab.inject(Carrier(f"h0:{rail}")):
            wait_until(lambda r=rail: states(node)[r] == "down", SLOW_S, "seen")
        wait_until(lambda r=rail: states(node)[r] == "up", SLOW_S, "back")
    wait_until(lambda: len(rows(node, kind="would_steer")) == 4, SLOW_S, "stored")
    shown = done(node, "promote", "steer", "--group", "g1", "--yes")
    assert "2 changes, 1 of them took traffic from a link" in shown
    assert "(1 flaps) through today's rules: 1 times away" in shown
    assert "rail0" not in shown
    with lab.inject(Carrier("h0:rail0")):
        wait_until(lambda: states(node)["rail0"] == "down", SLOW_S, "seen")
        assert weights(node)["rail0"] == 1000, "observed"
    with lab.inject(Carrier("h0:rail1")):
        wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "steered")
    assert ask(node, "status")["groups"] == {"g0": "observe", "g1": "steer"}
    node.restart_daemon()
    wait_until(lambda: page(node).mode == 1, READY_S, "outlives a restart")
    assert ctl(node, "promote", "steer", "--group", "nope", "--yes").returncode == 1
    done(node, "promote", "observe", "--yes")
    assert ask(node, "status")["groups"] == {"g0": "observe", "g1": "observe"}


NOBODY = 65534


@pytest.mark.parametrize(
    ("member_of", "reads", "changes"),
    [(None, False, False), ("read_group", True, False), ("admin_group", True, True)],
)
def test_the_control_socket_goes_by_group(cluster, two_groups, member_of, reads, changes):
    lab = cluster(hosts=1, rails=2)
    node = lab.nodes[0]
    node.start_daemon(mode="steer", control=two_groups)
    wait_until(lambda: states_or_none(node, "rail0") == "up", READY_S, "up")
    socket = node.run_dir / "ctl.sock"
    for directory in [node.run_dir, *node.run_dir.parents]:
        if directory.stat().st_mode & 0o001 == 0:
            pytest.skip(f"{directory} is closed to other users")
    assert socket.stat().st_mode & 0o007 == 0
    groups = [grp.getgrnam(two_groups[member_of]).gr_gid] if member_of else []
    assert (talk(socket, groups, "status") == "yes") is reads
    assert (talk(socket, groups, "reload") == "yes") is changes


TALK = """
import json, os, socket, sys
os.setgroups(json.loads(sys.argv[2])); os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except PermissionError:
    print("shut out"); sys.exit()
s.sendall(json.dumps({"op": sys.argv[3]}).encode() + b"\\n")
print("yes" if json.loads(s.makefile().readline())["ok"] else "no")
"""


def talk(socket, groups, op):
    asked = subprocess.run(
        [sys.executable, "-c", TALK, str(socket), json.dumps(list(groups)), op],
        capture_output=True, text=True, timeout=CTL_S, check=True,
    )  # fmt: skip
    return asked.stdout.strip()


@pytest.fixture
def two_groups():
    """Two groups that every system has: /etc/group belongs to all tests that run just now."""
    read, admin = (g.gr_name for g in grp.getgrall() if g.gr_name in {"games", "mail"})
    return {"read_group": read, "admin_group": admin}


def test_daemon_and_prober_are_kept_off_the_training_cores(cluster):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core: nothing to keep off")
    lab = started(cluster, host={"cpus": str(cores[0])})
    node = lab.nodes[0]
    for pid in (node.daemon.pid, node.prober.pid):
        wait_until(lambda p=pid: affinities(p) == {(cores[0],)}, SLOW_S, f"{pid} is pinned")
    node.prober.wait_restarted(node.kill_prober())
    wait_until(
        lambda: affinities(node.prober.pid) == {(cores[0],)}, SLOW_S, "a new prober is pinned too"
    )
    text = node.config_path.read_text()
    node.config_path.write_text(text.replace(f'cpus = "{cores[0]}"', f'cpus = "{cores[1]}"'))
    done(node, "reload")
    for pid in (node.daemon.pid, node.prober.pid):
        wait_until(lambda p=pid: affinities(p) == {(cores[1],)}, SLOW_S, f"{pid} moved")


@pytest.mark.nightly
def test_the_daemon_is_above_a_job_as_the_configuration_says(cluster):
    tried = subprocess.run(["chrt", "--rr", "1", "true"], capture_output=True, check=False)
    above = os.SCHED_OTHER if tried.returncode else os.SCHED_RR
    node = started(cluster, host={"realtime": True}).nodes[0]
    wait_until(lambda: policies(node.daemon.pid) == {above}, SLOW_S, "real-time, if it may be")
    text = node.config_path.read_text()
    node.config_path.write_text(text.replace("realtime = true", "realtime = false"))
    done(node, "reload")
    wait_until(lambda: policies(node.daemon.pid) == {os.SCHED_OTHER}, SLOW_S, "as any other")


def policies(pid):
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
        with contextlib.suppress(ProcessLookupError):
            found.add(os.sched_getscheduler(int(thread)))
    return found


def affinities(pid):
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
        try:
            found.add(tuple(sorted(os.sched_getaffinity(int(thread)))))
        except ProcessLookupError:
            continue
    return found


def test_a_support_bundle_has_everything_but_secrets(cluster, tmp_path):
    lab = started(cluster)
    node = lab.nodes[0]
    key = lab.dir.key.read_text().strip()
    canary = "kanari3nvogel"
    config = node.config_path.read_text()
    node.config_path.write_text(f'# the key is {key}\n# broker password = "{canary}"\n{config}')
    (node.config_path.parent / "conf.d").mkdir()
    (node.config_path.parent / "conf.d" / "9.toml").write_text(f"# token: {canary}\n")
    done(node, "reload")
    done(node, "drain", "rail1", "--reason", f"password={canary} {key}")
    done(node, "maintenance", "host", "--for", "9m", "--reason", f"see https://u:{canary}@wiki/x")
    done(node, "detector", "off", "loss", "--reason", f"secret {key.upper()}")
    wait_until(lambda: len(rows(node, kind="operator")) == 3, SLOW_S, "on the timeline")
    archive = tmp_path / "case.tar.gz"
    where = ["--config", str(node.config_path), "--out", str(archive)]
    made = node.run([sys.executable, "-m", "fabricd.cli", "support-bundle", *where,
                     "--socket", str(node.run_dir / "ctl.sock")])  # fmt: skip
    assert archive.stat().st_mode & 0o777 == 0o600, made.stdout
    members = unpacked(archive)
    everything = b"\n".join(members.values()).lower()
    for secret in (key, canary):
        assert secret.encode() not in everything
    assert json.loads(members["daemon/status.json"])["operator"]["drain"][0]["target"] == "rail1"
    assert b"[[links]]" in members["config/fabricd.toml"]
    assert "config/conf.d/9.toml" in members
    assert b"fabricd_link_flaps_total" in members["metrics.txt"]
    kinds = {json.loads(line)["kind"] for line in members["timeline.jsonl"].splitlines()}
    assert {"operator", "link_state", "daemon"} <= kinds
    assert b"\ncarrier_down_count: 1\n" in members["nic/rail0/sysfs.txt"]
    assert json.loads(members["manifest.json"])["redactions"] >= 8
    missing = json.loads(members["manifest.json"])["missing"]
    assert set(missing) == {"daemon/migrations.json"}
    assert all(why.startswith("no [broker]") for why in missing.values())
    again = ctl(node, "support-bundle", *where)
    assert (again.returncode, "File exists" in again.stderr) == (1, True)


def unpacked(archive):
    with tarfile.open(archive) as tar:
        return {m.name.partition("/")[2]: tar.extractfile(m).read() for m in tar.getmembers()}


@pytest.fixture
def small_disk(cluster):
    """A lab whose h0 keeps its state on a file system of 4 MB; gives (lab, fill, free)."""
    lab = cluster(hosts=4, rails=2)
    state = lab.nodes[0].state_dir
    filler = state / "filler"

    def fill():
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(state)], check=True)
    try:
        yield lab, fill, filler.unlink
    finally:
        lab.nodes[0].stop_services()
        subprocess.run(["umount", str(state)], check=True)


@pytest.mark.nightly
def test_a_full_disk_delays_no_steering_and_loses_no_flap(small_disk):
    lab, fill, free = small_disk
    lab.start_daemons(hold={"hold_down_s": 0.5, "probation_s": 1.0})
    node = lab.nodes[0]
    for each in lab.nodes:
        wait_until(lambda n=each: ready(n), READY_S, f"{each.name} hears everybody")
    fill()

    def timeline():
        return ask(node, "status")["timeline"]

    flaps = 0
    end = time.monotonic() + 60
    while timeline()["failures"] == 0 or flaps < 3:  # until the store has really met the end
        assert time.monotonic() < end, "the disk never was full"
        with lab.inject(Carrier("h0:rail1")):
            flaps += 1
            wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "steered in spite of it")
        wait_until(lambda: states(node)["rail1"] == "up", 90, "and back")
    assert timeline()["waiting"] > 0
    metrics = node.fetch("http://127.0.0.1:19200/metrics")
    number = {line.split()[0]: float(line.split()[1]) for line in metrics.splitlines()
              if line.startswith("fabricd_timeline_")}  # fmt: skip
    assert number["fabricd_timeline_append_failures_total"] > 0
    assert number["fabricd_timeline_waiting_events"] > 0
    refused = ctl(node, "drain", "rail1")
    assert refused.returncode == 1
    assert "not stored, so not done" in refused.stderr
    assert weights(node)["rail1"] == 1000
    promoted = ctl(node, "promote", "observe", "--yes")
    assert "No space left" in promoted.stderr
    free()
    wait_until(lambda: timeline()["waiting"] == 0, SLOW_S, "stored when there is room")
    assert sum(r["count"] for r in rows(node, kind="flap", link="rail1")) == flaps
    sequence = [r["seq"] for r in rows(node)]
    assert sequence == list(range(sequence[0], sequence[0] + len(sequence))), "in order, no gap"
    assert timeline()["dropped"] == 0
    done(node, "drain", "rail1")


def test_a_daemon_starts_on_a_full_disk_and_steers(small_disk):
    lab, fill, free = small_disk
    node = lab.nodes[0]
    node.write_config({}, "steer")
    fill()
    for each in lab.nodes[1:]:
        each.start_prober()
        each.start_daemon()
    node.start_prober()
    config = node.write_config
    node.write_config = lambda *_: node.config_path  # The mode is there; the disk has no room.
    node.start_daemon()
    node.write_config = config
    wait_until(lambda: ready(node), READY_S, "h0 hears everybody")
    with lab.inject(Carrier("h0:rail1")):
        wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "steered")
    free()
    wait_until(lambda: ask(node, "status")["timeline"]["waiting"] == 0, SLOW_S, "stored")
    wait_until(lambda: len(rows(node, kind="flap")) == 1, SLOW_S, "with its flap")


@pytest.mark.nightly
def test_state_survives_a_reboot(cluster):
    """A reboot as the daemon sees it: another boot id in what it stored, and nothing in /run."""
    lab = started(cluster)
    node = lab.nodes[0]
    for _ in range(4):
        with lab.inject(Carrier("h0:rail1")):
            wait_until(lambda: weights(node)["rail1"] == 0, SLOW_S, "down")
        wait_until(lambda: node.carrier(1), SLOW_S, "carrier back")

    def link():
        return next(x for x in ask(node, "links") if x["netdev"] == "rail1")

    wait_until(lambda: link()["flaps"] == 4, SLOW_S, "all counted")
    assert link()["suppressed"]
    node.daemon.stop()
    with contextlib.closing(sqlite3.connect(node.state_dir / "timeline.db")) as db, db:
        db.execute("UPDATE events SET boot_id = 'before'")
        db.execute("UPDATE sequences SET boot_id = 'before'")
        for key, value in db.execute("SELECT key, value FROM state").fetchall():
            document = json.loads(value) | {"boot_id": "before", "mono_ns": 1}
            db.execute("UPDATE state SET value = ? WHERE key = ?", (json.dumps(document), key))
    (node.run_dir / "steer").unlink()
    node.daemon.start()
    wait_until(lambda: prober_in_use(node), READY_S, "up again")
    after = link()
    assert after["flaps"] == 4
    assert after["penalty"] > 100
    assert after["flaps_last_hour"] == 4
    assert after["state"] in ("hold", "probation")
    wait_until(lambda: link()["state"] == "up", 90, "it comes back in its time")
