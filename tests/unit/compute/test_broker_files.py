"""Certificates and access list of a site's broker."""

import os
import ssl
import subprocess

import pytest
from typer.testing import CliRunner

from compute.certificates import Authority, CertificateError
from compute.cli import app, broker_command
from compute.mosquitto import access_list


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def openssl(*arguments):
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_a_client_is_one_of_the_authoritys(authority):
    certificate, key = authority.client("gpu-01", "host")
    status, said = openssl("verify", "-purpose", "sslclient", "-x509_strict", "-CAfile",
                           authority.certificate_file, certificate)  # fmt: skip
    assert status == 0, said
    assert "CN = gpu-01" in openssl("x509", "-in", certificate, "-noout", "-subject")[1]
    assert key.stat().st_mode & 0o777 == 0o600
    assert (authority.directory / "ca.key").stat().st_mode & 0o777 == 0o600
    ssl.create_default_context().load_cert_chain(certificate, key)


def test_a_client_is_no_server_and_no_authority(authority):
    certificate, _ = authority.client("gpu-01", "host")
    status, _ = openssl("verify", "-purpose", "sslserver", "-CAfile",
                        authority.certificate_file, certificate)  # fmt: skip
    assert status != 0
    assert "CA:FALSE" in openssl("x509", "-in", certificate, "-noout", "-text")[1]


def test_the_server_has_all_its_names(authority):
    certificate, _ = authority.server(["broker.example.org", "10.0.0.1", "fd00::1"])
    text = openssl("x509", "-in", certificate, "-noout", "-ext", "subjectAltName")[1]
    assert "DNS:broker.example.org, IP Address:10.0.0.1, IP Address:FD00:0:0:0:0:0:0:1" in text
    status, said = openssl("verify", "-purpose", "sslserver", "-x509_strict", "-CAfile",
                           authority.certificate_file, certificate)  # fmt: skip
    assert status == 0, said


def test_a_revoked_client_is_refused(authority):
    certificate, _ = authority.client("gpu-01", "host")
    kept, _ = authority.client("gpu-02", "host")
    assert authority.revoke("gpu-01") == 1
    check = ("verify", "-crl_check", "-CAfile", authority.certificate_file, "-CRLfile",
             authority.revocations_file)  # fmt: skip
    assert "revoked" in openssl(*check, certificate)[1]
    assert openssl(*check, kept)[0] == 0
    with pytest.raises(CertificateError, match="gpu-01"):
        authority.revoke("gpu-01")
    assert authority.names("host") == ["gpu-02"]
    assert authority.revoked == ["gpu-01"]
    authority.client("gpu-01", "host")
    assert authority.revoked == [], "it has a new one"


def test_a_name_has_one_role(authority):
    authority.client("a", "compute")
    authority.client("a", "compute")
    for role in ("host", "operator"):
        with pytest.raises(CertificateError, match="compute"):
            authority.client("a", role)


def test_each_connection_of_a_fabric_compute_is_a_client_of_its_own(authority):
    """Attack S2."""
    issued = authority.compute("c0")
    assert [name for name, _, _ in issued] == ["c0", "c0.events", "c0.probe"]
    assert [certificate.name for _, certificate, _ in issued] == [
        "c0.pem", "c0.events.pem", "c0.probe.pem",
    ]  # fmt: skip
    assert authority.names("events") == ["c0.events"]
    assert authority.revoke("c0") == 3
    assert authority.revoked == ["c0", "c0.events", "c0.probe"]


def test_a_fabric_compute_gets_all_of_its_certificates_or_none(authority):
    authority.client("c0.events", "host")
    with pytest.raises(CertificateError, match=r"c0\.events is the name of a client"):
        authority.compute("c0")
    with pytest.raises(CertificateError, match="64 letters"):
        authority.compute("x" * 60)
    assert [one.name for one in authority.issued] == ["c0.events"]


def test_what_a_fabric_compute_of_an_older_version_lacks_is_issued_at_the_start(tmp_path):
    authority = Authority(tmp_path)
    authority.client("c0", "compute")
    authority.client("x" * 60, "compute")
    done = CliRunner().invoke(app, ["broker", "--dir", str(tmp_path), "--write-only"])
    assert done.exit_code == 0, done.output
    assert "events c0.events: " in done.output
    assert f"{'x' * 60} has no certificate for its events" in done.output
    assert "\nuser c0.events\n" in (tmp_path / "access.acl").read_text()
    again = CliRunner().invoke(app, ["broker", "--dir", str(tmp_path), "--write-only"])
    assert "events c0.events" not in again.output


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "-a", "a b", "x" * 65, "é", "a\n", "%u"])
def test_a_name_that_means_something_in_a_topic_is_refused(authority, name):
    with pytest.raises(CertificateError):
        authority.client(name, "host")
    assert authority.issued == []


def test_the_authority_stays_the_same(authority):
    before = authority.certificate_file.read_bytes()
    Authority(authority.directory)
    assert authority.certificate_file.read_bytes() == before


def test_a_spoiled_register_issues_nothing(authority):
    (authority.directory / "issued.json").write_text("[{}]")
    with pytest.raises(CertificateError, match=r"issued\.json"):
        authority.client("gpu-01", "host")


def test_names_of_an_access_list_stand_in_their_own_lines():
    text = access_list(["c0"], ["ann"], "p/v1")
    assert "user c0\ntopic deny p/v1/host/c0/#\ntopic readwrite p/v1/compute/c0/#\n" in text
    assert "user ann\ntopic deny p/v1/host/ann/#\ntopic readwrite p/v1/stop\n" in text
    assert "deny #" not in text
    assert "\nuser h9\ntopic deny #\n" in access_list(["c0"], [], "p/v1", ["h9"])


def test_links_in_the_brokers_directory_give_away_no_file(tmp_path, monkeypatch):
    """Attack S9: mosquitto's user has put links where root makes the broker's files its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root: gives files away")
    monkeypatch.setattr(broker_command, "USER", "nobody")
    outside = tmp_path / "outside"
    outside.write_text("root's")
    directory = tmp_path / "broker"
    arguments = ["broker", "--dir", str(directory), "--write-only"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (directory / "data" / "soft").symlink_to(outside)
    (directory / "data" / "hard").hardlink_to(outside)
    (directory / "data" / "mosquitto.db").write_text("")
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert outside.stat().st_uid == 0
    assert (directory / "data" / "mosquitto.db").stat().st_uid != 0
    assert (directory / "data").stat().st_uid != 0


def test_the_command_says_what_is_wrong(tmp_path):
    for arguments, words in (
        (["--host", "a/b"], "no name of a client"),
        (["--revoke", "x"], "no certificate"),
        (["--listen", "nowhere", "--write-only"], "ADDRESS:PORT"),
    ):
        done = CliRunner().invoke(app, ["broker", "--dir", str(tmp_path), *arguments])
        assert done.exit_code in (1, 2)
        assert words in done.output + done.stderr
