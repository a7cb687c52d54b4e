"""The daemon's tasks do not wait for each other."""

import asyncio
from pathlib import Path

from verbs_ports import Ports
from whole_host import WholeHost, text

from fabricd import daemon
from fabricd.config.loader import parse
from fabricd.config.source import ConfigSource
from fabricd.links.portwatch import PortWatch


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_a_stats_directory_that_hangs_delays_no_look_at_the_verbs_ports(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(daemon, "SCAN_S", 0.001)
    monkeypatch.setattr(daemon, "PORTS_S", 0.001)
    whole = WholeHost(tmp_path)
    host = whole.host
    of = daemon.Daemon(ConfigSource(Path("f"), parse(text(tmp_path), "f")))
    scanning = asyncio.Event()

    async def hangs(*, settled):
        scanning.set()
        await asyncio.Event().wait()

    host.jobs.scan = hangs
    ports = Ports([link.netdev for link in host.engine.links])
    tasks = [
        asyncio.create_task(of._scan(host)),
        asyncio.create_task(of._watch_ports(PortWatch(ports, host.nic_input, host.events.record))),
    ]
    try:
        await asyncio.wait_for(scanning.wait(), 60)
        await until(lambda: host.engine.links[0].port_active is True)
        ports.read = lambda: dict.fromkeys(ports.netdevs, False)
        await until(lambda: host.engine.links[0].port_active is False)
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        whole.close()
