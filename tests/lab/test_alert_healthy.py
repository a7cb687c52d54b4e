"""A fabric that is well alerts nobody, however busy its hosts are: a real Prometheus watches it."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager

import pytest

from lab.observe.prometheus import Prometheus

PORT = 19200
LASTS_S = int(os.environ.get("FABRIC_HEALTHY_S", "1800"))
START_S = 120.0


@contextmanager
def all_cores_busy():
    """Computes on every core, as a job's threads do."""
    cores = str(os.cpu_count() or 1)
    load = subprocess.Popen(
        ["stress-ng", "--cpu", cores, "--quiet"], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
        assert load.poll() is None, "the load ended"
    finally:
        load.terminate()
        load.wait()


@pytest.mark.nightly
@pytest.mark.timeout(LASTS_S + 900)
def test_half_an_hour_of_eight_busy_hosts_alerts_nobody(cluster, tmp_path):
    lab = cluster(hosts=8, rails=2)
    lab.start_daemons(metrics={"listen": f"127.0.0.1:{PORT}"})
    with Prometheus(lab.nodes, tmp_path / "prometheus", port=PORT, scrape_s=5) as prometheus:
        deadline = time.monotonic() + START_S
        while not prometheus.query("(count(fabricd_link_state == 1) == 16) and (sum(up) == 8)"):
            assert time.monotonic() < deadline, prometheus.query("fabricd_link_state != 1")
            time.sleep(1)
        begin = time.time()
        with all_cores_busy():
            time.sleep(LASTS_S)
        since = round(time.time() - begin) + 30
        fired = prometheus.query(f'count_over_time(ALERTS{{alertstate="firing"}}[{since}s])')
        assert [series["metric"] for series in fired] == []
        # It has looked: rules without data would say as little.
        looked = prometheus.query(f"min(count_over_time(fabricd_link_state[{since}s]))")
        assert float(looked[0]["value"][1]) >= LASTS_S / 5 * 0.5
        assert len(prometheus.query("instance:fabricd_rails_in_service:ratio == 1")) == 8
