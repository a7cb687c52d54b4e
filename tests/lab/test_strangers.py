"""Attack S1, whole: somebody without a part in a job says all that its hosts may say.

Real daemons, broker, fabric-compute and training ranks. The stranger has a process of his own on
``jobs.sock`` of another host; the job comes out as it does undisturbed, bit by bit.
"""

import dataclasses
import json
import subprocess
import sys
import textwrap

import pytest
from test_host_takeover import LONG, records
from test_takeover import SCRIPT, environment

from fabric_train.messages.documents import AgentDocument, JobGeneration, Member, ProcessState
from fabric_train.messages.documents import to_data as data_of
from lab.cluster import Cluster, wait_until
from lab.services.management import Management, TrainingJob
from lab.topology import Topology

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

NOBODY = 65534
STEPS = 30
STRANGER = textwrap.dedent("""
    import json, os, socket, sys, time
    path, uid = sys.argv[1], int(sys.argv[2])
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
    said = json.loads(sys.argv[3])
    at = socket.socket(socket.AF_UNIX)
    at.connect(path)
    at.settimeout(0.3)
    at.sendall(json.dumps({"kind": "register", "version": 1, "job": "gpt",
                           "incarnation": "mallory"}).encode() + b"\\n")
    while True:
        for document in said:
            at.sendall(json.dumps({"kind": "document", "document": document}).encode() + b"\\n")
            try:
                sys.stdout.write(at.recv(1 << 20).decode())
                sys.stdout.flush()
            except TimeoutError:
                pass
""")
"""Says one document after the other, and prints what he is told."""


def what_he_says():
    """Each of the things by which a job was killed, taken over or learnt of."""
    mine = ProcessState("h2/mallory/p0", "warm")
    plain = AgentDocument(
        "gpt", "h2", "mallory", 2, 0, 1, "10.6.6.6:1", "10.6.6.6:2", "his", [mine]
    )
    forged = JobGeneration(
        2, 1, ["h2/mallory/p0", "h1/x/p0"], ["h2", "h1"], ["h2/mallory"], ["h2/mallory"],
        [Member("h2", "mallory", "10.6.6.6:1", "10.6.6.6:2", "his")], "10.6.6.6:2", True, [0],
    )  # fmt: skip
    changes = ({}, {"accepted": forged, "running": 2}, {"suspects": 9}, {"misses": ["h0", "h1"]},
               {"failed": "mallory says so"})  # fmt: skip
    return [data_of(dataclasses.replace(plain, **one)) for one in changes]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "job"
    out.mkdir()
    subprocess.run(
        [sys.executable, "-m", "fabric_train.run", "--standalone", "--nproc-per-node", "2",
         "--spares", "0", str(SCRIPT), str(STEPS), str(out)],
        env=environment(), cwd=out, check=True, capture_output=True, timeout=500,
    )  # fmt: skip
    return weights(out)


def weights(out):
    return [(out / f"weights.{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize(
    ("mode", "uid", "has_key"),
    [
        ("observe", NOBODY, False),
        pytest.param("migrate", 0, True, marks=pytest.mark.nightly),
        pytest.param("migrate", NOBODY, False, marks=pytest.mark.nightly),
    ],
    ids=["user-observe", "root-migrate", "user-migrate"],
)
def test_a_stranger_changes_nothing_of_a_job_and_learns_nothing(undisturbed, mode, uid, has_key):
    topology = Topology(name="strangers", hosts=3, rails=2, rate_bps=200_000_000, management=True)
    with Cluster(topology=topology) as cluster:
        management = Management(cluster)
        management.start_broker()
        management.start_compute(mode=mode)
        cluster.start_daemons(mode="migrate", broker=management.broker_table)
        options = []
        if has_key:
            key = cluster.dir.root / "gpt.key"
            key.write_bytes(b"k" * 32)
            key.chmod(0o600)
            options = ["--key-file", str(key)]
        path = cluster.nodes[2].run_dir / "jobs.sock"
        wait_until(path.exists, LONG, "fabricd's start")
        heard = cluster.dir.root / "heard"
        with heard.open("wb") as into:
            stranger = subprocess.Popen(
                [sys.executable, "-c", STRANGER, str(path), str(uid), json.dumps(what_he_says())],
                stdout=into, stderr=into,
            )  # fmt: skip
        try:
            wait_until(lambda: b"welcome" in heard.read_bytes(), LONG, "he is let in")
            out = cluster.dir.root / "out"
            out.mkdir()
            job = TrainingJob(
                cluster, SCRIPT, [str(STEPS), str(out)], nodes=2, spares=0,
                options=["--standby", "0", *options], env={"PAUSE_S": "0.2"},
            )  # fmt: skip
            statuses = job.wait(LONG)
            assert stranger.poll() is None, heard.read_text()
        finally:
            stranger.kill()
            stranger.wait()
        logs = [job.log(node).read_text() for node in job.hosts]
        compute = (management.dir / "c0.log").read_text()
        assert statuses == {"h0": 0, "h1": 0}, (logs, compute[-5000:])
        assert weights(out) == undisturbed
        assert "generation 2" not in "".join(logs)
        told = heard.read_text()
        assert '"order"' in told, "he is heard, as a job of his own"
        assert "h0/" not in told
        assert "h1/" not in told
        (namesake,) = records(management, "namesake")
        if namesake["host"] == "h2":
            assert (namesake["uid"], namesake["others"]) == (uid, ["gpt"])
        else:
            assert namesake["others"] == ["gpt"], "he was the first of that name"
        assert records(management, "fence") == []
