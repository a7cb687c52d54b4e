"""Runs what reads the NICs and what forecasts, beside the event loop. Thin."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import structlog

from fabricd.config.loader import Config
from fabricd.engine import Engine
from fabricd.nics.monitor import NicMonitor
from fabricd.nics.reader import CounterReader, Reader, Reading, SlowReader
from fabricd.nics.sweeper import Sweeper
from fabricd.predict.forecast import Forecast
from fabricd.runtime.nic_input import NicInput
from fabricd.runtime.settings import HostSettings
from telemetry.counters.devlink import SharedDump

CHILD_S = 60.0
SLOW_PERIOD_S = 5.0
STATE = "forecast.json"


class NicWatch:
    """Both threads and the forecast's process."""

    def __init__(
        self,
        settings: HostSettings,
        engine: Engine,
        nics: NicMonitor,
        nic_input: NicInput,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Args: ``nic_input`` takes on ``loop`` what is read."""
        self._settings, self._engine, self._nics = settings, engine, nics
        self._input, self._loop = nic_input, loop
        self._log = structlog.get_logger()
        self._sweepers: list[Sweeper] = []
        self._config: Config | None = None
        self._trouble = ""

    def configure(self, config: Config) -> None:
        """Read the links of this configuration; a new period begins all of them anew."""
        netdevs = [link.netdev for link in config.links]
        before = self._config
        if (
            before is None or before.counters != config.counters
            or before.rdma_devices != config.rdma_devices
        ):  # fmt: skip
            self.close(0.0)
            self._sweepers = self._make(config)
        self._config = config
        for sweeper in self._sweepers:
            sweeper.links(netdevs)

    def check(self) -> dict[str, float]:
        """Each tick: keep the threads running; links that hang → seconds."""
        hanging: dict[str, float] = {}
        for sweeper in self._sweepers:
            for netdev, seconds in sweeper.check().items():
                hanging[netdev] = max(seconds, hanging.get(netdev, 0.0))
        return hanging

    def close(self, timeout_s: float = 1.0) -> None:
        """End the threads; one that hangs in a driver is left behind."""
        for sweeper in self._sweepers:
            sweeper.close(timeout_s)
        self._sweepers = []

    async def forecast(self) -> None:
        """Forever: a window, a forecast."""
        while True:
            await asyncio.sleep(self._settings.config.predict.window_s)
            await self.window()

    async def window(self) -> None:
        """One window of the forecast; what goes wrong is logged, once."""
        planned = self._engine.overrides.planned
        request = make_request(self._settings.config, self._nics, planned)
        try:
            forecasts, notes = await ask(request)
            trouble = "; ".join(notes)
        except (OSError, TimeoutError, ValueError, KeyError, TypeError, AttributeError) as error:
            forecasts, trouble = {}, f"no forecast: {str(error) or type(error).__name__}"
        if trouble and trouble != self._trouble:
            self._log.warning("forecast", problem=trouble[:300])
        self._trouble = trouble
        self._input.foretold(forecasts)

    def _make(self, config: Config) -> list[Sweeper]:
        # A thread that parses keeps the loop waiting for the interpreter's lock for this long.
        sys.setswitchinterval(0.0005)
        period_s, module_s = config.counters.period_s, config.counters.module_s
        names = [link.netdev for link in config.links]
        module_ns = round(module_s * 1e9)
        dump = SharedDump()

        def counters(netdev: str) -> Reader:
            device = config.rdma_devices.get(netdev, "")
            return CounterReader(netdev, device=device, period_ns=round(period_s * 1e9))

        def slow(netdev: str) -> Reader:
            place = names.index(netdev) if netdev in names else 0
            offset_ns = module_ns * place // len(names)
            return SlowReader(
                netdev,
                module_ns=module_ns,
                offset_ns=offset_ns,
                dump=dump,
                settlings=lambda: self._nics.settlings(netdev),
            )

        return [
            self._sweeper("counters", counters, period_s),
            self._sweeper("slow", slow, min(SLOW_PERIOD_S, module_s)),
        ]

    def _sweeper(self, name: str, make: Callable[[str], Reader], period_s: float) -> Sweeper:
        def deliver(readings: list[Reading]) -> None:
            self._loop.call_soon_threadsafe(take, readings)

        def take(readings: list[Reading]) -> None:
            sweeper.taken()
            self._input.nics_read(readings)

        sweeper = Sweeper(name, make, deliver, period_s=period_s)
        return sweeper


def make_request(config: Config, nics: NicMonitor, planned: Iterable[str]) -> dict[str, Any]:
    """What `fabricd.predict.child` is asked; the window ends here.

    Args:
        config: of the host.
        nics: whose window ends.
        planned: links that somebody works on.
    """
    rows = nics.window(planned)
    return {
        "state": str(Path(config.paths.state_dir) / STATE),
        "names": list(nics.nics),
        "modules": nics.modules(),
        "window": {key: [None if math.isnan(x) else x for x in row] for key, row in rows.items()},
        "rules": {"alarm": config.predict.threshold, "window_s": config.predict.window_s},
    }


async def ask(
    request: dict[str, Any], argv: Sequence[str] = (sys.executable, "-m", "fabricd.predict.child")
) -> tuple[dict[str, Forecast], list[str]]:
    """Run the child for one window: forecasts by link, and what was not usable.

    Raises:
        OSError, TimeoutError, ValueError, KeyError, TypeError, AttributeError: it failed.
    """
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    with contextlib.suppress(OSError):  # It has gone, or a system call filter forbids it.
        # Not above a job, as this process is, not even for as long as it loads its libraries.
        os.sched_setscheduler(child.pid, os.SCHED_OTHER, os.sched_param(0))
    try:
        async with asyncio.timeout(CHILD_S):
            out, err = await child.communicate(json.dumps(request).encode())
            assert child.stdin is not None
            with contextlib.suppress(OSError):  # It ended before it had read: its status says why.
                # Python 3.11 logs a traceback of a broken pipe that nobody waits for.
                await child.stdin.wait_closed()
    except BaseException:
        if child.returncode is None:
            child.kill()
            await child.wait()
        raise
    if child.returncode:
        last = err.decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(f"exit status {child.returncode}: {last[:200]}")
    answer = json.loads(out)
    forecasts = {str(name): Forecast.of(each) for name, each in answer["links"].items()}
    return forecasts, [str(note) for note in answer["notes"]]
