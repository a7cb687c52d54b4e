"""The tick: what hangs elsewhere does not keep it from saying that the steer page is alive."""

import asyncio
from types import SimpleNamespace

from whole_host import WholeHost, text

from fabricd import daemon
from fabricd.config.loader import parse
from fabricd.config.source import ConfigSource
from fabricd.daemon import Daemon
from fabricd.detect import localization
from fabricd.steer.page import decode


async def test_a_prober_that_hangs_does_not_stop_the_heartbeat(tmp_path, monkeypatch):
    assert daemon.TICK_S + localization.ANSWER_S < 1, "what steer_page.h promises"
    monkeypatch.setattr(daemon, "TICK_S", 0.01)
    monkeypatch.setattr(localization, "ANSWER_S", 0.01)
    whole = WholeHost(tmp_path)
    host, asked, answer = whole.host, [], asyncio.get_running_loop().create_future()

    async def views():
        asked.append(1)
        return await answer

    monkeypatch.setattr(host.prober.feed, "views", views)
    host.detectors.localization.places.trouble_ns = 1
    made = Daemon(ConfigSource(tmp_path / "f.toml", parse(text(tmp_path), "f")))
    made._nics = SimpleNamespace(check=dict)
    beats = set()
    task = asyncio.create_task(made._tick(host))

    async def until(condition):
        async with asyncio.timeout(60):
            while not condition():
                assert not task.done()
                beats.add(decode((tmp_path / "steer").read_bytes()).heartbeat_ns)
                await asyncio.sleep(0.002)

    try:
        await until(lambda: len(beats) > 5)
        assert len(asked) == 1, "one question at a time"
        before = host.detectors.localization._asked_ns
        (tmp_path / "STOP").write_text("")
        await until(lambda: host.publisher.modes.stopped)
        answer.set_result([])
        await until(lambda: host.detectors.localization._asked_ns != before)
        await until(lambda: len(asked) > 1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        whole.close()
