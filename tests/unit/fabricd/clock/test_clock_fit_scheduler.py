"""When each path's line is fitted."""

import numpy as np
import pytest
from clock_services import Stopped

from clocksync.mesh.host import MeshHost
from clocksync.pair.model import SECOND
from fabricd.clock.fit_scheduler import FIT_S, FIT_SHARE_S, LATE, FitScheduler
from fabricd.clock.paths import ClockPath, PathKey
from fabricd.clock.phc import Phcs

STEP = SECOND // 10


@pytest.mark.parametrize("count", [1, 8, 21, 80])
def test_each_path_is_fitted_in_its_turn_and_fed_only_then(count):
    clocks = Stopped()
    lines = FitScheduler(MeshHost(7, 100, clocks.ns, 1), Phcs(), clocks)
    paths = [ClockPath(n, PathKey("rail0", f"10.0.0.{n}", 9200, n + 8)) for n in range(count)]
    fitted = {path.number: [] for path in paths}
    batches = []
    for path in paths:
        path.estimator.estimate = lambda now, at=fitted[path.number]: at.append(now)
    for _ in range(300):
        clocks.ns += STEP
        for path in paths:
            path.came.append(np.zeros((7, 2), np.int64))
        before = lines.fits
        assert not lines.fit(paths, clocks.ns)
        batches.append(lines.fits - before)
        for path in paths:
            waiting = sum(part.shape[1] for part in path.came)
            assert (waiting == 0) == (fitted[path.number][-1:] == [clocks.ns])
    period = max(FIT_S, FIT_SHARE_S * count) * SECOND
    for times in fitted.values():
        gaps = np.diff(times[1:])
        assert gaps.min() >= period
        assert gaps.max() <= period * (1 + 1 / LATE) + STEP
    steady = batches[100:]
    assert max(steady) <= max(8, count / 4), "not all at once, which would be a stop of all"
