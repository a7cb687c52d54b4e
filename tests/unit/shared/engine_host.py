"""A host with peers that are heard, for tests of the engine."""

from whole_host import link_tables

from fabricd.config.loader import parse
from fabricd.detect.mesh import PathSpec
from fabricd.detect.silence import PathView
from fabricd.engine import Engine

MS, SEC = 10**6, 10**9
PEERS = "abc"
I = 30 * MS  # noqa: E741 - a path's interval


def config(rails=4, extra=""):
    return parse(f'[host]\nname = "h"\n{link_tables(rails, addressed=True)}{extra}', "f")


def specs(rails=4, peers=PEERS):
    return [PathSpec(r, p, r, f"10.{r}.0.{ord(p)}") for r in range(rails) for p in peers]


class Host:
    """An engine with peers that are heard, except what is silenced."""

    def __init__(self, rails=4, peers=PEERS, extra=""):
        self.engine = Engine(config(rails, extra), specs(rails, peers))
        self.now = SEC
        self.silent = {}
        self.gone = set()
        self.fresh_prober = False
        for link in self.engine.links:
            link.carrier = True
        self.changes = []
        self.outcome = None
        self.run(2 * I)

    def silence(self, *where):
        """Silence (link, peer) pairs from now on; a number silences the whole link."""
        for item in where:
            for path in self.engine.paths:
                if item == path.spec.link or item == (path.spec.link, path.spec.peer):
                    self.silent.setdefault(path.index, self.now)

    def restore(self):
        self.silent.clear()

    def views(self):
        out = []
        for path in self.engine.paths:
            heard = self.silent.get(path.index, self.now)
            missed = max(0, (self.now - heard - I // 2) // I)
            gone = (path.spec.link, path.spec.peer) in self.gone
            known = not (self.fresh_prober and path.index in self.silent) and not gone
            out.append(
                PathView(path.index, path.spec.link, path.spec.peer, known,
                         missed if known else 0, 0, I, heard if known else 0,
                         said_ns=heard, next_ns=heard + I, awake_ns=10**15, gone=gone)
            )  # fmt: skip
        return out

    def run(self, duration, step=10 * MS, prober=True):
        for _ in range(max(1, duration // step)):
            self.now += step
            self.outcome = self.engine.evaluate(self.views() if prober else None, self.now)
            self.changes += self.outcome.changes

    def states(self):
        return [link.health.state for link in self.engine.links]

    def weights(self):
        return [rail.weight for rail in self.engine.plan().rails]


def flap(host, link):
    """Carrier lost for less time than probes take to miss it."""
    host.engine.links[link].carrier, host.engine.links[link].pending_downs = False, 1
    host.run(20 * MS)
    host.engine.links[link].carrier = True
