"""Who is thrown out of a broker, and what is said where that cannot be done."""

import contextlib
import socket
import ssl
import threading
from datetime import timedelta

import pytest
from cryptography import x509

from compute import expel
from compute.certificates import CLOCK_SKEW, Authority, Site
from compute.expel import listener
from compute.mosquitto import BrokerFiles, configuration


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(expel, "AFTER_S", (0.0,))
    authority, files = Authority(tmp_path / "authority"), BrokerFiles(tmp_path)
    authority.remember(Site(("localhost",)))
    return authority, files


def configure(files, address, port):
    pem = files.directory / "server.pem"
    text = configuration(files, address, port, certificate=pem, key=pem)
    files.configuration.write_text(text)


@pytest.mark.parametrize(
    ("address", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.7", "10.0.0.7")],
)
def test_where_a_broker_of_this_machine_is_reached(site, address, reached):
    _, files = site
    assert listener(files) is None
    configure(files, address, 8883)
    assert listener(files) == (reached, 8883)
    files.configuration.write_text("listener x y\n\xff")
    assert listener(files) is None


def test_a_certificate_for_a_moment_lasts_for_one_and_is_in_no_register(site):
    authority, _ = site
    pair = authority.for_a_moment("h1")
    made = x509.load_pem_x509_certificate(pair.certificate.encode())
    lasts = made.not_valid_after_utc - made.not_valid_before_utc
    assert lasts <= CLOCK_SKEW + timedelta(minutes=1)
    assert authority.issued == []


@contextlib.contextmanager
def broker(authority, files, answer):
    """Accepts one client of the site and says ``answer``. Yields its name and packets."""
    server = authority.server(("localhost",))
    server.write(files.directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.directory / "server.pem", files.directory / "server.key")
    context.load_verify_locations(authority.certificate_file)
    context.verify_mode = ssl.CERT_REQUIRED
    got = []

    def serve():
        with listening.accept()[0] as plain, context.wrap_socket(plain, server_side=True) as sock:
            names = dict(one[0] for one in sock.getpeercert()["subject"])
            got.append(names["commonName"])
            got.append(sock.recv(1000))
            sock.sendall(answer)
            got.append(sock.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        configure(files, *listening.getsockname())
        thread = threading.Thread(target=serve)
        thread.start()
        yield got
        thread.join(60)


def test_it_takes_the_clients_place_and_goes(site):
    with broker(*site, b"\x20\x02\x00\x00") as got:
        assert expel.expel(*site, ["h1"]) == ""
    assert got == ["h1", b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x0a\x00\x02h1", b"\xe0\x00"]


def test_a_broker_that_does_not_let_it_in_is_said(site):
    with broker(*site, b"\x20\x02\x00\x05"):
        assert expel.expel(*site, ["h1"]) == "h1: the broker answers 20020005"


def test_where_no_broker_runs_there_is_nothing_to_say(site):
    _, files = site
    assert expel.expel(*site, ["h1"]) == ""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configure(files, "127.0.0.1", port)
    assert expel.expel(*site, ["h1"]) == ""
