"""What watching costs: CPU and memory of prober and daemon, series for each link.

One host under test with eight rails; each of its ten peers is a prober that answers as a whole host
would, all in one other host of the lab with ten addresses on each rail. They are given the paths
that the daemon under test chose, at the interval of a peer that has ten of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.outage import ring
from bench.report import Row
from fabricd.config.loader import Config, load
from fabricd.detect.mesh import PathSpec, train_rate
from fabricd.probes.client import ProbeConfig, ProbeLink, ProbePath, ProberClient, host_id
from fabricd.probes.peer_index import PeerIndex
from fabricd.probes.ring import RingReader
from lab.cluster import Cluster, wait_until
from lab.node import REPO, Node, prober_binary
from lab.topology import TABLE_BASE, Topology

RAILS, PEERS = 8, 10
LINK_INTERVAL_MS, TRAINS_HZ = 10, 100
WHOLE_S, QUICK_S = 60.0, 15.0
SETTLE_S = 10.0
"""Damping, first hearing and the first state documents are start, not running."""
SCRAPE_S = 15.0
"""As Prometheus does by default; it is part of what a daemon costs."""
LOAD = ("--size", "64K")
SCANNED_S = 5.0
"""The daemon reads stats pages once a second."""
METRICS = "http://127.0.0.1:19200/metrics"
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its threads so far, user and system."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def rss_mb(pid: int) -> float:
    """Resident memory of a process, in 10⁶ bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def unit_environment(unit: str) -> dict[str, str]:
    """What the unit sets: a figure of a daemon that runs otherwise would be of another daemon."""
    lines = (REPO / "systemd" / f"{unit}.service").read_text().splitlines()
    words = [line.partition("=")[2] for line in lines if line.startswith("Environment=")]
    return dict(word.split("=", 1) for word in words)


def peer_name(number: int) -> str:
    """Of such names that each rail of h0 has 100 trains a second, as the figure is asked for.

    Clock paths are agreed by pairs, so by chance a rail may have more of its peers' choice.
    """
    return f"p110-{number}"


def peer_addresses(rail: int) -> list[str]:
    """Where the peers are on a rail; the lab's own hosts have .1 and .2."""
    return [f"10.{rail}.0.{100 + number}" for number in range(PEERS)]


def peers() -> list[dict[str, object]]:
    """The ``[[peers]]`` tables of the host under test."""
    return [
        {
            "host": peer_name(number),
            "addresses": [
                {"rail": rail, "address": peer_addresses(rail)[number]} for rail in range(RAILS)
            ],
        }
        for number in range(PEERS)
    ]


def chosen(config: Config) -> list[PathSpec]:
    """The paths that the daemon under test chooses."""
    return PeerIndex(config.peers).paths(config, [str(link.address) for link in config.links])


def answers(config: Config, number: int) -> ProbeConfig:
    """The configuration of a peer's prober: the other ends of the paths that lead to it."""
    addresses = [str(link.address) for link in config.links]
    name = peer_name(number)
    specs = [spec for spec in chosen(config) if spec.peer == name]
    links = [
        ProbeLink(rail, f"rail{rail}", peer_addresses(rail)[number], config.probe.port)
        for rail in range(RAILS)
    ]
    paths = [
        ProbePath(
            index,
            spec.peer_rail,
            addresses[spec.link],
            config.probe.port,
            host_id(config.host.name),
            spec.clock,
            extra=spec.peer_rail != config.links[spec.link].rail,
        )
        for index, spec in enumerate(specs)
    ]
    return ProbeConfig(
        host_id(name), links, paths,
        # One path of ten on each link is ours: the packets of the others go elsewhere.
        link_interval_us=LINK_INTERVAL_MS * 1000 * PEERS,
        misses=config.probe.misses, clock_train_hz=train_rate(TRAINS_HZ, RAILS, PEERS),
    )  # fmt: skip


def add_addresses(node: Node) -> None:
    """Give the other host the peers' addresses, each of which leaves by its own rail."""
    lines = []
    for rail in range(RAILS):
        # One rule for all: each packet that arrives walks them, at the cost of who sent it.
        lines.append(f"rule add from 10.{rail}.0.0/24 table {TABLE_BASE + rail}")
        lines += [f"addr add {address}/24 dev rail{rail}" for address in peer_addresses(rail)]
    node.run(["ip", "-batch", "-"], input_text="\n".join(lines) + "\n")


@contextmanager
def responders(node: Node, config: Config) -> Iterator[None]:
    """A prober for each peer, configured, until the block ends."""
    with ExitStack() as stack:
        clients = []
        for number in range(PEERS):
            home = node.dir / f"p{number}"
            (home / "prober").mkdir(parents=True)
            log = stack.enter_context((home / "prober.log").open("w"))
            key = ["--key-file", str(node.site.dir.key)]
            process = node.popen(
                [str(prober_binary()), "--run-dir", str(home), *key], stdout=log, stderr=log
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            clients.append(home / "prober" / "ctl.sock")
        wait_until(lambda: all(path.exists() for path in clients), 10, "the peers' probers")

        async def configure() -> None:
            for number, path in enumerate(clients):
                client = await ProberClient.connect(path)
                await client.configure(answers(config, number))
                await client.close()

        asyncio.run(configure())
        yield


def all_up(node: Node) -> bool:
    """Whether the daemon says UP of every link."""
    try:
        body = node.fetch(METRICS)
    except OSError:
        return False
    up = re.findall(r"^fabricd_link_state\{[^}]*\} 1(?:\.0)?$", body, re.MULTILINE)
    return len(up) == RAILS


@contextmanager
def watched_host(name: str) -> Iterator[tuple[Cluster, Node]]:
    """A lab whose h0 watches ten peers over eight rails, all links UP."""
    topology = Topology(f"detect-{name}", hosts=2, rails=RAILS, rate_bps=0)
    with Cluster(topology=topology) as cluster, ExitStack() as stack:
        node, other = cluster.nodes
        add_addresses(other)
        # Byte code is compiled when a package is installed, not when a daemon starts.
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="fabric-bytecode-"))
        env = unit_environment("fabricd") | {
            "PYTHONPYCACHEPREFIX": cache,
            "PYTHONDONTWRITEBYTECODE": "",
        }
        node.run([sys.executable, "-c", "import fabricd.daemon"], env=env)
        node.start_prober(restart=False)
        node.start_daemon(
            restart=False,
            env=env,
            peers=peers(),  # type: ignore[arg-type]  # an array of tables
            probe={"link_interval_ms": LINK_INTERVAL_MS, "clock_train_hz": TRAINS_HZ},
        )
        stack.enter_context(responders(other, load(node.config_path)))
        wait_until(lambda: all_up(node), 60, "all links UP")
        yield cluster, node


def running(node: Node) -> tuple[int, int]:
    """Pids of prober and daemon.

    Raises:
        RuntimeError: one of them does not run.
    """
    pids = [service.pid if service else None for service in (node.prober, node.daemon)]
    if None in pids:
        raise RuntimeError(f"prober and daemon of {node.name}: {pids}")
    return pids[0] or 0, pids[1] or 0


def cost(*, quick: bool) -> list[Row]:
    """CPU and memory of prober and daemon while nothing happens."""
    seconds = QUICK_S if quick else WHOLE_S
    with watched_host("cost") as (_cluster, node):
        trains = sum(path.clock for path in chosen(load(node.config_path)))
        time.sleep(SETTLE_S)
        prober, daemon = running(node)
        before = packets(node)
        share = shares(node, (prober, daemon), seconds, scraped=True)
        after = packets(node)
        if not all_up(node):
            raise RuntimeError("a link left UP while nothing was done to it")
        memory = rss_mb(prober), rss_mb(daemon)
    sent, received = ((b - a) / seconds for a, b in zip(before, after, strict=True))
    bare = bare_share(seconds)
    note = (
        f"{RAILS} links, {PEERS} peers each, {trains} clock paths, {seconds:.0f} s; "
        f"{sent:.0f} packets/s sent, {received:.0f} received; beside: 3200 and 3200 by the same "
        "sockets, and nothing done with them"
    )
    return [
        Row("prober, idle rails: CPU by that of bare sockets", 1.3, share[0] / bare, "×"),
        Row("prober, idle rails: CPU", None, share[0], "% of a core", peer=bare, note=note),
        Row("prober: resident memory", 8, memory[0], "MB"),
        Row("daemon: CPU", 2, share[1], "% of a core", note=f"{seconds:.0f} s"),
        Row("daemon: resident memory", 60, memory[1], "MB"),
    ]  # fmt: skip


def shares(node: Node, pids: Sequence[int], seconds: float, *, scraped: bool) -> list[float]:
    """Percent of one core that each takes, meanwhile scraped as Prometheus does."""
    began = time.monotonic()
    first = [cpu_s(pid) for pid in pids]
    while (left := began + seconds - time.monotonic()) > 0:
        if scraped:
            node.fetch(METRICS)
        time.sleep(min(SCRAPE_S, left))
    took = time.monotonic() - began
    return [100 * (cpu_s(pid) - at) / took for pid, at in zip(pids, first, strict=True)]


def bare_share(seconds: float) -> float:
    """What as many packets cost by themselves: in percent of a core, of one of two such hosts."""
    program = prober_binary().with_name("bare-probes")
    with Cluster(topology=Topology("detect-bare", hosts=2, rails=RAILS, rate_bps=0)) as cluster:
        one, other = cluster.nodes
        processes = []
        for own, peer in ((one, 1), (other, 0)):
            rails = [f"rail{r}=10.{r}.0.{2 - peer}=10.{r}.0.{peer + 1}" for r in range(RAILS)]
            processes.append(own.popen([str(program), "7000", *rails]))
        time.sleep(SETTLE_S)
        share = shares(one, [processes[0].pid], seconds, scraped=False)[0]
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("bare-probes ended")
        return share


def packets(node: Node) -> tuple[int, int]:
    """Probes sent and received by the host so far, as its prober counts."""
    with RingReader(node.run_dir / "prober" / "ring") as reader:
        header = reader.header()
    return header.sent, header.received


def series(*, quick: bool) -> list[Row]:
    """Series for each link on a live scrape of a daemon that has a job, and promtool's opinion."""
    del quick
    with watched_host("series") as (cluster, node), ring(cluster, load=LOAD):
        time.sleep(SCANNED_S)
        body = node.fetch(METRICS)
    counts = {
        f"rail{rail}": len(re.findall(rf'^[a-z_]+\{{[^}}]*link="rail{rail}"', body, re.MULTILINE))
        for rail in range(RAILS)
    }
    said = subprocess.run(
        ["promtool", "check", "metrics"], input=body, text=True, capture_output=True, check=False
    )
    complaints = [line for line in (said.stdout + said.stderr).splitlines() if line.strip()]
    worst = max(counts, key=counts.__getitem__)
    return [
        Row(
            "series for one link",
            60,
            counts[worst],
            "",
            note=f"{worst}, the most of {RAILS}; live scrape, a job over all of them",
        ),
        Row(
            "promtool check metrics: complaints",
            0,
            len(complaints) + (said.returncode != 0 and not complaints),
            "",
            better="equal",
            note="; ".join(complaints)[:200],
        ),
    ]
