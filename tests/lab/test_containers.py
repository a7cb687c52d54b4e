"""Jobs in containers: no root, no capability, own user, pid and mount namespaces, no /sys, nothing
of /proc/sys, 64 KiB of locked memory; the daemon outside. And: no job sees another's pages.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fabricd.jobs.directory import prepare_stats_directory
from fabricd.steer.page import PageError, decode
from lab.cluster import wait_until
from lab.faults.catalog import Carrier
from lab.node import REPO
from lab.observe import stats_pages
from telemetry.statspage import StatsEventKind

ALICE, BOB, DAEMON = 64001, 64002, 64003
PATIENCE_S = 60.0

# In the host's network namespace, as the runtime would: $1 uid, $2 run directory, $3 what is seen
# of its stats ("": it is missing), then the command.
CONTAINER = """
set -e
uid=$1 run=$2 stats=$3
shift 3
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o ro,mode=0555 none /proc/sys
mount -t tmpfs -o ro,mode=0555 none /sys
mount -t tmpfs -o mode=0755 none /mnt
mkdir /mnt/run
mount --bind "$run" /mnt/run
if [ -n "$stats" ]; then
  mount -o remount,bind,ro /mnt/run
  mount --bind "$stats" /mnt/run/stats
else
  mount -t tmpfs -o ro,mode=0555 none /mnt/run/stats
fi
ulimit -l 64
export FABRIC_RUN_DIR=/mnt/run
exec setpriv --reuid $uid --regid $uid --clear-groups --no-new-privs --bounding-set=-all \\
  --inh-caps=-all unshare --user --map-user=$uid --map-group=$uid -- "$@"
"""


def in_checkout(lab, checkout):
    """fabric-perf and the plugin, by paths below ``checkout``."""
    return [checkout / path.relative_to(REPO) for path in (lab.binaries.perf, lab.binaries.plugin)]


def as_user(uid, *command, **how):
    """Run a command as a user of no other group and no capability."""
    drop = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    drop += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    return subprocess.run(
        [*drop, *command], capture_output=True, text=True, timeout=60, check=False, **how
    )


class Job:
    """p2p of fabric-perf over two hosts, each rank in a container of its own."""

    def __init__(self, lab, checkout, name, uid, *args, stats=None):
        self.dir = lab.dir.root / name
        (self.dir / "rendezvous").mkdir(parents=True)
        for path in (self.dir, self.dir / "rendezvous"):
            path.chmod(0o777)
        perf, plugin = in_checkout(lab, checkout)
        self.ranks = []
        for rank, node in enumerate(lab.nodes):
            command = [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                CONTAINER,
            ]
            shown = str(node.run_dir / "stats") if stats is None else stats(node)
            command += ["sh", str(uid), str(node.run_dir), shown]
            command += [str(perf), "p2p", "--plugin", str(plugin)]
            command += ["--rank", str(rank), "--world", "2", "--size", "1M", "--wait", "block"]
            command += ["--rendezvous", f"file:{self.dir / 'rendezvous'}"]
            command += ["--jsonl", str(self.dir / f"{rank}.jsonl"), *args]
            with (self.dir / f"{rank}.log").open("wb") as log:
                env = {"NCCL_SOCKET_IFNAME": "rail", "FABRIC_JOB": name}
                self.ranks.append(node.popen(command, env=env, stdout=log, stderr=log))

    def rows(self, rank):
        path = self.dir / f"{rank}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def log(self, rank):
        return (self.dir / f"{rank}.log").read_text()[-2000:]

    def wait_moving(self):
        def moving(rank):
            assert self.ranks[rank].poll() is None, self.log(rank)
            return any(row["type"] == "sample" and row["bytes"] for row in self.rows(rank))

        for rank in range(2):
            wait_until(lambda rank=rank: moving(rank), PATIENCE_S, f"progress: {self.log(rank)}")

    def wait_clean(self):
        for rank, process in enumerate(self.ranks):
            assert process.wait(PATIENCE_S) == 0, self.log(rank)
            end = self.rows(rank)[-1]
            assert (end["type"], end["errors"], end["corrupt_bytes"]) == ("end", 0, 0)


def jobs_seen(node):
    """Pages of a host by job name."""
    _, found = stats_pages.read(node.run_dir)
    return {process.page.job: process for process in found if process.alive}


def assert_containers_work():
    probe = (
        "unshare --mount --pid --fork sh -c 'mount --make-rprivate / && mount -t tmpfs none /mnt' "
    )
    probe += f"&& setpriv --reuid {ALICE} --clear-groups --regid {ALICE} unshare --user true"
    done = subprocess.run(["sh", "-c", probe], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no unprivileged user namespaces here: {done.stderr.strip()}")


def steered(node):
    """The daemon is there, and the page it wrote is valid."""
    try:
        return bool(decode((node.run_dir / "steer").read_bytes()).rails)
    except (OSError, PageError):
        return False


@pytest.fixture
def lab(cluster):
    assert_containers_work()
    lab = cluster(hosts=2, rails=2, rail_only=True)
    lab.start_daemons(hold={"hold_down_s": 0.5})
    for node in lab.nodes:
        wait_until(lambda node=node: steered(node), PATIENCE_S, "a steer page")
    return lab


def test_two_jobs_in_containers_fail_over_and_are_seen(lab, open_checkout):
    jobs = [
        Job(lab, open_checkout, "alice", ALICE, "--duration", "15"),
        Job(lab, open_checkout, "bob", BOB, "--duration", "15"),
    ]
    for job in jobs:
        job.wait_moving()
    for node in lab.nodes:
        wait_until(
            lambda node=node: {"alice", "bob"} <= jobs_seen(node).keys(), PATIENCE_S, "both pages"
        )
        pages = jobs_seen(node)
        assert (pages["alice"].uid, pages["bob"].uid) == (ALICE, BOB)
        for process in pages.values():
            wait_until(
                lambda name=process.page.job, node=node: jobs_seen(node)[name].page.steer_present,
                PATIENCE_S,
                "the steer page being followed",
            )
            assert not process.seen  # a pid of another namespace
            assert process.path.stat().st_mode & 0o007 == 0
        # Neither lists the pages, nor reads, removes or replaces the other's.
        stats = node.run_dir / "stats"
        other = pages["bob"].path
        assert as_user(ALICE, "ls", str(stats)).returncode != 0
        assert as_user(ALICE, "cat", str(other)).returncode != 0
        assert as_user(ALICE, "rm", "-f", str(other)).returncode != 0
        assert as_user(ALICE, "mv", "-f", str(pages["alice"].path), str(other)).returncode != 0
        assert other.exists()
    # What the operator sees: both jobs, on both rails.
    node = lab.nodes[0]
    command = [sys.executable, "-m", "fabricd.cli", "top", "--once", "--json"]
    shown = json.loads(node.run([*command, "--socket", node.run_dir / "ctl.sock"]).stdout)
    seen = {(row["job"], row["where"]) for row in shown["rows"]}
    assert seen == {(job, rail) for job in ("alice", "bob") for rail in ("rail0", "rail1")}
    moving = [row for row in shown["rows"] if row["tx_bytes_s"]]
    assert {row["job"] for row in moving} == {"alice", "bob"}
    assert all(row["messages_s"] > 0 and row["p50_us"] > 0 for row in moving)
    with lab.inject(Carrier("h0:rail0")):

        def given_up():
            directory, found = stats_pages.read(lab.nodes[0].run_dir)
            kinds = {
                process.page.job: {e.kind for e in directory.new_events(process).events}
                for process in found
            }
            return all(StatsEventKind.PATH_DOWN in kinds.get(name, ()) for name in ("alice", "bob"))

        wait_until(given_up, PATIENCE_S, "both jobs giving the path up")
        for job in jobs:
            before = len(job.rows(0))
            wait_until(
                lambda job=job, n=before: any(
                    row["type"] == "sample" and row["rails"].get("rail1", {}).get("tx", 0)
                    for row in job.rows(0)[n:]
                ),
                PATIENCE_S,
                "payload on the other rail",
            )
    for job in jobs:
        job.wait_clean()
        # Without the right to list the directory fabric-perf finds its own page.
        samples = [row for row in job.rows(0) if row["type"] == "sample"]
        assert "stats_page" in {row["rails_from"] for row in samples}


@pytest.mark.nightly
def test_two_jobs_of_one_user_are_kept_apart_by_a_directory_each(lab, open_checkout):
    def own(name):
        def made(node):
            path = node.run_dir / "stats" / name
            path.mkdir(exist_ok=True)
            os.chown(path, ALICE, ALICE)
            path.chmod(0o750)
            return str(path)

        return made

    jobs = [
        Job(lab, open_checkout, name, ALICE, "--duration", "6", stats=own(name))
        for name in ("job-1", "job-2")
    ]
    for job in jobs:
        job.wait_moving()
    for node in lab.nodes:
        wait_until(
            lambda node=node: {"job-1", "job-2"} <= jobs_seen(node).keys(), PATIENCE_S, "the pages"
        )
        assert {p.subdirectory for p in jobs_seen(node).values()} == {"job-1", "job-2"}
    for job in jobs:
        job.wait_clean()


def test_without_a_place_for_its_page_a_job_counts_and_goes_on(lab, open_checkout):
    job = Job(lab, open_checkout, "nowhere", ALICE, "--iters", "50", stats=lambda node: "")
    job.wait_clean()
    assert "nowhere" not in jobs_seen(lab.nodes[0])


def test_a_daemon_without_root_reads_all_pages_and_no_job_does(cluster, open_checkout):
    """Real files of two users, read by a third who owns the directory, as the unit's user does."""
    lab = cluster(hosts=1, rails=1, rail_only=True)
    stats = lab.dir.root / "stats"
    stats.mkdir()
    os.chown(stats, DAEMON, DAEMON)
    assert prepare_stats_directory(stats, uid=DAEMON)
    apart = stats / "job-3"  # as docs/operate/install.md makes it
    subprocess.run(["install", "-d", "-o", str(BOB), "-m", "0750", apart], check=True)
    perf, plugin = in_checkout(lab, open_checkout)
    ranks = []
    for job, uid in (("alice", ALICE), ("bob", BOB)):
        rendezvous = lab.dir.root / f"rendezvous-{job}"
        rendezvous.mkdir()
        rendezvous.chmod(0o777)
        for rank in (0, 1):
            command = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
            command += [str(perf), "p2p", "--plugin", str(plugin), "--size", "8"]
            command += ["--rank", str(rank), "--world", "2", "--duration", "120"]
            command += ["--rendezvous", f"file:{rendezvous}", "--wait", "block"]
            env = {"FABRIC_RUN_DIR": str(lab.dir.root), "NCCL_SOCKET_IFNAME": "rail"}
            with (lab.dir.root / f"{job}-{rank}.log").open("wb") as log:
                ranks.append(
                    lab.nodes[0].popen(
                        command, env=env | {"FABRIC_JOB": job}, stdout=log, stderr=log
                    )
                )

    def four_pages():
        assert all(rank.poll() is None for rank in ranks), [
            path.read_text()[-1000:] for path in sorted(lab.dir.root.glob("*.log"))
        ]
        return len(list(stats.glob("[!.]*.page"))) == 4

    wait_until(four_pages, PATIENCE_S, "four pages")
    # A page in a job's own directory, made there by its user.
    copied = next(path for path in stats.glob("[!.]*.page") if path.stat().st_uid == BOB)

    def whole():
        """Copied between two publishes: a copy of half a page stays torn."""
        taken = as_user(BOB, "sh", "-c", f"umask 027; cp {copied} {apart}/")
        assert taken.returncode == 0, taken.stderr
        read = as_user(DAEMON, *python)
        said = read.stdout.strip()
        assert re.fullmatch(r"\['alice', 'bob'\] \d ({}|{'torn': \d})", said), read.stderr
        return said.endswith("5 {}")

    script = "import sys,time; from pathlib import Path; from telemetry.statsdir import *;"
    script += "d=StatsDirectory(Path(sys.argv[1])); pages=d.scan(time.monotonic_ns());"
    script += "print(sorted({p.page.job for p in pages}), len(pages), dict(d.refused))"
    interpreter = open_checkout / Path(sys.executable).relative_to(REPO)
    # Without site: its hook for an editable install knows the packages by the closed path.
    packages = open_checkout / Path(sysconfig.get_path("purelib")).relative_to(REPO)
    python = ["env", f"PYTHONPATH={open_checkout}:{packages}", interpreter, "-S", "-c"]
    python += [script, stats]
    wait_until(whole, PATIENCE_S, "the daemon reads all five")
    for uid in (ALICE, BOB):
        read = as_user(uid, *python)
        assert read.stdout.strip() == "[] 0 {'open': 1}", read.stderr
        own = {path for path in stats.glob("[!.]*.page") if path.stat().st_uid == uid}
        assert len(own) == 2
        for path in stats.glob("[!.]*.page"):
            assert (as_user(uid, "head", "-c", "4", str(path)).returncode == 0) == (path in own)
    for process in ranks:
        process.terminate()
    for process in ranks:
        process.wait(PATIENCE_S)
