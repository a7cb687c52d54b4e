"""Certificates and access list of a site's broker."""

import json
import os
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compute import broker_files
from compute.broker_files import OLDER_CLIENTS, default_authority
from compute.certificates import Authority, CertificateError, Site
from compute.cli import app, broker_command
from compute.mosquitto import access_list


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def call(*arguments, code=0):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output + done.stderr
    return done.output + done.stderr


def openssl(*arguments):
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_a_client_is_one_of_the_authoritys(authority):
    certificate, key = authority.client("gpu-01", "host").write(authority.directory)
    status, said = openssl("verify", "-purpose", "sslclient", "-x509_strict", "-CAfile",
                           authority.certificate_file, certificate)  # fmt: skip
    assert status == 0, said
    assert "CN = gpu-01" in openssl("x509", "-in", certificate, "-noout", "-subject")[1]
    assert key.stat().st_mode & 0o777 == 0o600
    assert (authority.directory / "ca.key").stat().st_mode & 0o777 == 0o600
    ssl.create_default_context().load_cert_chain(certificate, key)


def test_a_client_is_no_server_and_no_authority(authority):
    certificate, _ = authority.client("gpu-01", "host").write(authority.directory)
    status, _ = openssl("verify", "-purpose", "sslserver", "-CAfile",
                        authority.certificate_file, certificate)  # fmt: skip
    assert status != 0
    assert "CA:FALSE" in openssl("x509", "-in", certificate, "-noout", "-text")[1]


def test_the_server_has_all_its_names(authority):
    names = ["broker.example.org", "10.0.0.1", "fd00::1"]
    certificate, _ = authority.server(names).write(authority.directory)
    text = openssl("x509", "-in", certificate, "-noout", "-ext", "subjectAltName")[1]
    assert "DNS:broker.example.org, IP Address:10.0.0.1, IP Address:FD00:0:0:0:0:0:0:1" in text
    status, said = openssl("verify", "-purpose", "sslserver", "-x509_strict", "-CAfile",
                           authority.certificate_file, certificate)  # fmt: skip
    assert status == 0, said


def test_a_revoked_client_is_refused(authority):
    certificate, _ = authority.client("gpu-01", "host").write(authority.directory)
    kept, _ = authority.client("gpu-02", "host").write(authority.directory)
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
    assert [one.name for one in issued] == ["c0", "c0.events", "c0.probe"]
    assert len({one.key for one in issued}) == 3
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


def test_what_a_fabric_compute_of_an_older_version_lacks_is_said_at_the_start(tmp_path):
    place = ("--dir", tmp_path / "broker", "--authority", tmp_path / "authority")
    Authority(tmp_path / "authority").client("c0", "compute")
    said = call("broker", *place, "--write-only")
    assert "c0 has no certificates for events, probe" in said
    made = call("certificates", "issue", "c0", "--role", "compute", "--out", tmp_path, *place)
    assert "c0.events: " in made
    assert "\nuser c0.events\n" in (tmp_path / "broker" / "access.acl").read_text()
    assert "c0 has no" not in call("broker", *place, "--write-only")


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


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes other users")


@needs_root
def test_links_in_the_brokers_directory_give_away_no_file(tmp_path, monkeypatch):
    """Attack S9: mosquitto's user has put links where root makes the broker's files its own."""
    monkeypatch.setattr(broker_command, "USER", "nobody")
    outside = tmp_path / "outside"
    outside.write_text("root's")
    directory = tmp_path / "broker"
    arguments = ("broker", "--dir", directory, "--write-only")
    call(*arguments)
    (directory / "data" / "soft").symlink_to(outside)
    (directory / "data" / "hard").hardlink_to(outside)
    (directory / "data" / "mosquitto.db").write_text("")
    call(*arguments)
    assert outside.stat().st_uid == 0
    assert (directory / "data" / "mosquitto.db").stat().st_uid != 0
    assert (directory / "data").stat().st_uid != 0


TRY = """
import os, sys

def tries(path, flags):
    try:
        os.close(os.open(path, flags))
    except OSError:
        return False
    return True

for where, _, files in os.walk(sys.argv[1], onerror=lambda error: print("-", error.filename)):
    if tries(os.path.join(where, "new"), os.O_CREAT | os.O_EXCL | os.O_WRONLY):
        print("w", where)
    for name in files:
        path = os.path.join(where, name)
        if tries(path, os.O_RDONLY):
            print("r", path)
        if tries(path, os.O_WRONLY):
            print("w", path)
"""


def reached_by(user, top):
    """What a user can read ("r") and change ("w") below a directory, and not look into ("-")."""
    uid, gid = broker_files.identity_of(user)
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRY, str(top)], user=uid, group=gid, extra_groups=[],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return {what: {path for kind, path in lines if kind == what} for what in ("r", "w", "-")}


@pytest.fixture
def open_directory():
    # Not pytest's directory, which is closed to others.
    with tempfile.TemporaryDirectory(prefix="fabric-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@needs_root
def test_mosquittos_user_reads_what_it_needs_and_changes_only_its_data(open_directory):
    """Attack S9: a fault in the broker gives away neither the authority nor any client."""
    top = open_directory
    broker, authority, out = top / "fabric-broker", top / "fabric-authority", top / "out"
    place = ("--dir", broker, "--authority", authority)
    call("certificates", "issue", "early", "--out", out, *place)
    call("broker", *place, "--write-only", "--user", "nobody", "--name", "b")
    call("certificates", "issue", "h1", "h2", "--out", out, *place)
    call("certificates", "issue", "c0", "--role", "compute", "--out", out, *place)
    call("certificates", "revoke", "h2", *place)
    (broker / "data" / "mosquitto.db").write_text("")
    os.chown(broker / "data" / "mosquitto.db", *broker_files.identity_of("nobody"))
    found = reached_by("nobody", top)
    reads = {"ca.pem", "crl.pem", "server.pem", "server.key", "access.acl", "mosquitto.conf",
             "data/mosquitto.db", "keeper.pem", "keeper.key"}  # fmt: skip
    assert found["r"] == {str(broker / name) for name in reads}
    assert found["w"] == {str(broker / "data"), str(broker / "data/mosquitto.db")}
    assert found["-"] == {str(authority), str(out)}
    others = reached_by("daemon", top)
    public = ("ca.pem", "crl.pem", "server.pem", "keeper.pem", "mosquitto.conf")
    assert others["r"] == {str(broker / name) for name in public}
    assert others["w"] == set()
    assert {path.name for path in authority.iterdir()} == {
        "ca.key", "ca.pem", "crl.pem", "issued.json", "site.json",
    }, "no client's key is kept"  # fmt: skip
    assert "user nobody\n" in (broker / "mosquitto.conf").read_text()


def older(directory):
    """The layout of versions before: all in the broker's directory."""
    made = Authority(directory)
    (directory / "clients").mkdir(mode=0o700)
    for name in ("h1", "h2"):
        made.client(name, "host").write(directory / "clients")
    made.server(["b"]).write(directory)
    (directory / "data").mkdir()
    return made


@needs_root
def test_an_older_layout_is_moved_out_of_the_brokers_reach_and_that_is_told(open_directory):
    broker = open_directory / "fabric-broker"
    older(broker)
    before = {name: (broker / name).read_bytes() for name in ("ca.key", "ca.pem", "issued.json")}
    for path in (broker, *broker.rglob("*")):
        os.chown(path, *broker_files.identity_of("nobody"))
    said = call("broker", "--dir", broker, "--write-only", "--user", "nobody")
    authority = default_authority(broker)
    assert authority == open_directory / "fabric-authority"
    assert f"moved the authority from {broker} to {authority}" in said
    assert "moved 4 files of clients" in said
    assert {name: (authority / name).read_bytes() for name in before} == before
    kept = {path.name for path in (authority / OLDER_CLIENTS).iterdir()}
    assert kept == {"h1.pem", "h1.key", "h2.pem", "h2.key"}
    assert not (broker / "clients").exists()
    found = reached_by("nobody", open_directory)
    secrets = {path for path in found["r"] if path.endswith((".key", ".json"))}
    assert secrets == {str(broker / "server.key"), str(broker / "keeper.key")}
    assert found["w"] == {str(broker / "data")}
    assert (broker / "ca.pem").read_bytes() == before["ca.pem"]
    assert "moved" not in call("broker", "--dir", broker, "--write-only", "--user", "nobody")
    call("certificates", "revoke", "h1", "--dir", broker)
    assert "\nuser h1\ntopic deny #\n" in (broker / "access.acl").read_text()


@needs_root
@pytest.mark.parametrize("what", ["ca.key", "clients", "clients/h1.key", "issued.json"])
def test_links_in_an_older_layout_move_no_file_of_others(open_directory, what):
    """The broker's user owned that directory."""
    broker, outside = open_directory / "fabric-broker", open_directory / "outside"
    older(broker)
    outside.mkdir()
    (outside / "secret").write_text("root's")
    target = broker / what
    if target.is_dir():
        for path in target.iterdir():
            path.unlink()
        target.rmdir()
        target.symlink_to(outside)
    else:
        target.unlink()
        target.symlink_to(outside / "secret")
    call("broker", "--dir", broker, "--write-only", code=0 if what == "clients" else 1)
    assert (outside / "secret").read_text() == "root's"
    moved = [path.read_bytes() for path in open_directory.glob("fabric-authority/**/*.*")]
    assert b"root's" not in moved


def test_two_authorities_are_not_mixed(tmp_path):
    older(tmp_path / "broker")
    Authority(tmp_path / "authority")
    with pytest.raises(CertificateError, match="take one of them away"):
        broker_files.move_older(tmp_path / "broker", tmp_path / "authority")
    assert (tmp_path / "broker" / "ca.key").exists()


def test_a_client_keeps_its_key_and_sends_a_request(tmp_path):
    key, csr, out = tmp_path / "own.key", tmp_path / "h1.csr", tmp_path / "out"
    place = ("--dir", tmp_path / "broker", "--authority", tmp_path / "authority")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key)
    assert openssl(*new, "-subj", "/CN=h1", "-out", csr)[0] == 0
    issue = ("certificates", "issue", "--csr", csr, "--out", out, *place)
    assert "h1.key" not in call(*issue, "h1")
    assert sorted(path.name for path in out.iterdir()) == ["ca.pem", "h1.pem"]
    ssl.create_default_context().load_cert_chain(out / "h1.pem", key)
    status, text = openssl("verify", "-purpose", "sslclient", "-x509_strict", "-CAfile",
                           out / "ca.pem", out / "h1.pem")  # fmt: skip
    assert status == 0, text
    assert "not of h2" in call(*issue, "h2", code=1)
    assert "three keys" in call(*issue, "c0", "--role", "compute", code=2)
    assert "three keys" in call(*issue, "h1", "h2", code=2)
    small = ("req", "-newkey", "rsa:1024", "-nodes", "-keyout", key, "-subj", "/CN=h3")
    assert openssl(*small, "-out", csr)[0] == 0
    assert "at least 2048" in call(*issue, "h3", code=1)
    csr.write_text("nonsense")
    assert "no request" in call(*issue, "h3", code=1)
    csr.unlink()
    assert "No such file" in call(*issue, "h3", code=1)
    names = json.loads(call("certificates", "list", "--json", *place))
    assert [one["name"] for one in names] == ["h1"]


def test_names_and_prefix_are_remembered(tmp_path):
    place = ("--dir", tmp_path / "broker", "--authority", tmp_path / "authority")
    call("broker", *place, "--write-only", "--name", "b1", "--name", "10.0.0.1", "--prefix", "p/v1")
    call("certificates", "issue", "h1", "--out", tmp_path / "out", *place)
    call("broker", *place, "--write-only")
    assert "pattern write p/v1/host/%u/status" in (tmp_path / "broker/access.acl").read_text()
    server = tmp_path / "broker" / "server.pem"
    text = openssl("x509", "-in", server, "-noout", "-ext", "subjectAltName")[1]
    assert "DNS:b1, IP Address:10.0.0.1" in text
    assert Authority(tmp_path / "authority").site == Site(("b1", "10.0.0.1"), "p/v1")


def test_the_command_says_what_is_wrong(tmp_path):
    place = ("--dir", tmp_path / "broker", "--authority", tmp_path / "authority")
    for arguments, words in (
        (["certificates", "issue", "a/b"], "no name of a client"),
        (["certificates", "revoke", "x"], "no certificate"),
        (["broker", "--listen", "nowhere", "--write-only"], "ADDRESS:PORT"),
        (["broker", "--host", "h1"], "fabric-compute certificates issue h1 --role host"),
        (["broker", "--revoke", "h1"], "fabric-compute certificates revoke h1"),
    ):
        done = CliRunner().invoke(app, [*arguments, *map(str, place)])
        assert done.exit_code in (1, 2)
        assert words in done.output + done.stderr
