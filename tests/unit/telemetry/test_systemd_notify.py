"""What systemd hears: one datagram a message, at a path or an abstract name, and no failure."""

import os
import re
import socket

import pytest

from telemetry.service.systemd_notify import Notifier


@pytest.fixture
def heard():
    """A socket as systemd has one, not yet bound."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        yield sock


def test_each_message_is_one_datagram(heard, tmp_path, monkeypatch):
    heard.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    notifier = Notifier()
    notifier.ready("mode observe — 2 rails")
    assert heard.recv(4096).decode() == "READY=1\nSTATUS=mode observe — 2 rails"
    notifier.reloading()
    assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", heard.recv(4096))
    notifier.watchdog()
    notifier.stopping()
    assert [heard.recv(4096), heard.recv(4096)] == [b"WATCHDOG=1", b"STOPPING=1"]


def test_an_at_sign_begins_an_abstract_name(heard, monkeypatch):
    name = f"fabricd-notify-{os.getpid()}"
    heard.bind(f"\0{name}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    Notifier().watchdog()
    assert heard.recv(4096) == b"WATCHDOG=1"


def test_a_listener_that_comes_back_is_heard_again(heard, tmp_path, monkeypatch):
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    notifier = Notifier()
    notifier.watchdog()  # nobody is there
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as before:
        before.bind(str(path))
    notifier.watchdog()  # the name is there, and nobody behind it
    path.unlink()
    heard.bind(str(path))
    notifier.watchdog()
    assert heard.recv(4096) == b"WATCHDOG=1"


def test_without_systemd_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setattr(socket, "socket", None)
    Notifier().ready("up")


def send_until_full(sock, path):
    while True:
        sock.sendto(b"x", path)


def test_a_queue_that_is_full_holds_nobody_up(heard, tmp_path, monkeypatch):
    path = str(tmp_path / "notify")
    heard.bind(path)
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
        full.setblocking(False)
        with pytest.raises(BlockingIOError):
            send_until_full(full, path)
    monkeypatch.setattr("telemetry.service.systemd_notify._PATIENCE_S", 0.01)
    Notifier().watchdog()
