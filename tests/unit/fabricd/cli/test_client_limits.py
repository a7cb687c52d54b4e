"""An answer of the daemon that has no end is refused, and fills no memory of who asked."""

import socket
import threading

import pytest

from fabricd.cli import client

ENDLESS = b'{"ok": true, "data": "' + b"x" * 5000


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """Answers one request with what the test says; its socket."""
    monkeypatch.setattr(client, "MAX_ANSWER", 2000)
    path = tmp_path / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threads = []

        def answering(*lines):
            def serve():
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"".join(lines))

            threads.append(threading.Thread(target=serve))
            threads[-1].start()
            return path

        yield answering
        for thread in threads:
            thread.join()


def test_an_answer_without_end_is_refused(daemon):
    with pytest.raises(client.DaemonError, match="longer than"):
        client.request(daemon(ENDLESS), {"op": "status"})


def test_an_answer_within_the_limit_is_none(daemon):
    assert client.request(daemon(b'{"ok": true, "data": [1]}\n'), {"op": "status"}) == [1]


def test_a_stream_has_lines_of_a_limit(daemon):
    good = [b'{"ok": true}\n', b'{"n": 1}\n']
    lines = client.stream(daemon(*good, ENDLESS), {"op": "events"})
    assert next(lines) == {"n": 1}
    with pytest.raises(client.DaemonError, match="longer than"):
        next(lines)
    with pytest.raises(client.DaemonError, match="longer than"):
        next(client.stream(daemon(ENDLESS), {"op": "events"}))
