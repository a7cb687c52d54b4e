"""fabric-perf across namespaces: every ABI version, both rendezvous, another plugin, its rows."""

import json
import subprocess

import pytest

HOSTS = 3
RAILS = 4


@pytest.fixture
def lab(cluster):
    return cluster(hosts=HOSTS, rails=RAILS, rail_only=True)


def rail_bytes(rows, way):
    """Per rail, summed over all sample rows."""
    total = {}
    for row in rows:
        if row["type"] == "sample":
            for rail, moved in row["rails"].items():
                total[rail] = total.get(rail, 0) + moved[way]
    return total


def assert_clean(results):
    for result in results:
        assert result.status == 0, result
        assert result.end["errors"] == 0
        assert result.end["corrupt_bytes"] == 0


@pytest.mark.parametrize("version", ["v8", "v9", "v10", "v11", "v12"])
def test_all_reduce_with_each_abi(lab, version):
    args = ("--size", "8M", "--iters", "6", "--abi", version)
    perf = lab.start_perf("ring", *args)
    assert_clean(perf.wait(240))
    for rank in range(HOSTS):
        rows = perf.rows(rank)
        assert rows[0]["abi"] == version
        assert rows[0]["channels"] == RAILS
        assert {row["rails_from"] for row in rows if row["type"] == "sample"} <= {"stats_page"}
        payload = rows[-1]["bytes"] * 2 * (HOSTS - 1) / HOSTS
        received = rail_bytes(rows, "rx")
        assert set(received) == {f"rail{r}" for r in range(RAILS)}
        assert all(received.values())
        # Payload, and six tokens of 24 bytes. What is sent counts what is sent again, too.
        assert sum(received.values()) == pytest.approx(payload, rel=1e-4)
        assert sum(rail_bytes(rows, "tx").values()) >= payload


@pytest.mark.parametrize("collective", ["ring", "alltoall"])
def test_the_plain_plugin_over_a_tcp_rendezvous(lab, collective, tmp_path):
    perf = lab.binaries.perf
    plain = lab.binaries.plugin.with_name("libnccl-net-plain.so")
    ranks = []
    for rank, node in enumerate(lab.nodes):
        command = [str(perf), collective, "--plugin", str(plain), "--rank", str(rank)]
        command += ["--world", str(HOSTS), "--rendezvous", "tcp:10.0.0.1:29400"]
        command += ["--size", "8M", "--iters", "6", "--jsonl", str(tmp_path / f"{rank}.jsonl")]
        ranks.append(
            node.popen(
                command,
                env={"NCCL_SOCKET_IFNAME": "rail"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    for rank, process in enumerate(ranks):
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0, out
        rows = [json.loads(line) for line in (tmp_path / f"{rank}.jsonl").read_text().splitlines()]
        assert rows[0]["plugin"] == "PLAIN"
        assert rows[0]["abi"] == "v12"
        assert {row["rails_from"] for row in rows if row["type"] == "sample"} == {"net_dev"}
        moved = rail_bytes(rows, "tx")
        factor = 2 * (HOSTS - 1) / HOSTS if collective == "ring" else (HOSTS - 1) / HOSTS
        # The kernel counts headers, too.
        assert sum(moved.values()) >= rows[-1]["bytes"] * factor * 0.99
        assert len(moved) == RAILS
