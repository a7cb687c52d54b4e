"""``./run bench detect``: how well faults are seen, placed and not imagined."""

from bench.detect import optics
from bench.detect.simulator import simulator

PARTS = {"simulator": simulator, "optics": optics.run}
