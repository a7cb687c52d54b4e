"""fabricd at a site's broker with TLS, client certificates and an access list."""

import asyncio

from broker_lab import Daemon, until
from test_compute_broker import SiteBroker, site

__all__ = ["SiteBroker", "site"]


def table(site, name, **files):
    clients = site.directory / "clients"
    files = {
        "ca_file": site.directory / "ca.pem",
        "cert_file": clients / f"{name}.pem",
        "key_file": clients / f"{name}.key",
    } | files
    return "".join(f'{key} = "{path}"\n' for key, path in files.items() if path is not None)


def broker_of(daemon):
    return (daemon.answers() or {}).get("broker") or {}


async def test_a_host_speaks_for_itself_only(tmp_path, site):
    """With its own certificate all it says is taken; with another host's, nothing."""
    own = Daemon(tmp_path / "own", site, "h1", broker_extra=table(site, "h1"))
    other = Daemon(tmp_path / "other", site, "h2", broker_extra=table(site, "h1"))
    try:
        for daemon in (own, other):
            daemon.start()
        await until(lambda: broker_of(own).get("connected"), "h1 is connected")
        await until(lambda: broker_of(other).get("rejected", 0) >= 3, "h2 is rejected")
        await asyncio.sleep(0.5)
        assert broker_of(own)["rejected"] == 0
    finally:
        own.stop()
        other.stop()


async def test_what_is_wrong_with_certificates_is_said(tmp_path, site):
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes((site.directory / "clients" / "h1.pem").read_bytes())
    wanted = {
        "missing": (table(site, "h1", ca_file=tmp_path / "none.pem"), "none.pem: No such file"),
        "stranger": (table(site, "h1", ca_file=stranger), "certificate verify failed"),
        "plain": (table(site, "h1", ca_file=None, cert_file=None, key_file=None), ""),
    }
    for name, (text, reason) in wanted.items():
        daemon = Daemon(tmp_path / name, site, "h1", broker_extra=text)
        try:
            daemon.start()
            await until(
                lambda d=daemon: broker_of(d).get("reason") not in (None, "connecting"), name
            )
            state = broker_of(daemon)
            assert not state["connected"]
            assert reason in state["reason"]
        finally:
            daemon.stop()
