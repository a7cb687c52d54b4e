"""A clock service without a prober: its clock, its directory and its ring are a test's."""

import struct
from contextlib import contextmanager

from clocksync.mesh.model import HostRules
from fabricd.clock.service import ClockService
from fabricd.probes import layout as lay
from lab.inputs.ring_file import fresh_ring, put, sample_at

NOW = 1_800_000_000 * 10**9
QUICK = HostRules(listen_ns=0)


class Stopped:
    """A clock that a test moves."""

    def __init__(self):
        self.ns = 10**12

    def now(self):
        return self.ns

    def own(self, stamps):
        return stamps

    def peers(self, _host, stamps):
        return stamps


@contextmanager
def services(run_dir, clocks):
    """Starts services of host 7, and closes them."""
    made = []

    def start(**given):
        made.append(
            ClockService(
                7, run_dir, **({"priority": 100, "clocks": clocks, "rules": QUICK} | given)
            )
        )
        return made[-1]

    yield start
    for each in made:
        each.close()


def ring_with(run_dir, *messages, path=0, host=8):
    data = fresh_ring(0, len(messages), paths=2)
    for index in range(2):
        put(data, lay.PATH_ROW, lay.PATH_OFFSET + index * lay.PATH_ROW.size,
            flags=lay.PATH_CLOCK, host_id=host + index, peer_incarnation=5)  # fmt: skip
    for number, message in enumerate(messages):
        sample_at(data, number, path=path, config=1, clock_message=struct.unpack("<4Q", message))
    return data
