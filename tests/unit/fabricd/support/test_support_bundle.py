"""The bundle: secrets planted in every place are in no byte of the archive."""

import contextlib
import io
import json
import os
import secrets
import socket
import tarfile
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fabricd.cli import client
from fabricd.support import facts
from fabricd.support.bundle import collect, fetch_metrics, write
from fabricd.support.state import read_as_owner
from telemetry.events import Event, EventKind
from telemetry.timeline import Timeline

KEYS = [secrets.token_hex(32), secrets.token_hex(32)]
WORD = "kanari3nvogel"
PLANTED = (
    f"{KEYS[0]}\nx {KEYS[1].upper()} y\nmqtt password = {WORD}\n--auth-token {WORD}\n"
    f"https://u:{WORD}@h/\nAuthorization: Bearer {WORD}{WORD}\n"
    f"-----BEGIN PRIVATE KEY-----\n{WORD}\n-----END PRIVATE KEY-----\n"
)
DOCUMENT = {"x": [PLANTED, {"api_token": WORD}], f"secret={WORD}": 1, "netdev": "rail0"}


def unpacked(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {m.name.partition("/")[2]: tar.extractfile(m).read() for m in tar.getmembers()}
        assert all(m.mode == 0o600 for m in tar.getmembers())
    return files


def assert_clean(files):
    for name, data in files.items():
        for text in (name.lower(), data.decode().lower()):
            for secret in (*KEYS, WORD):
                assert secret not in text, name


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PLANTED.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def etc(tmp_path, monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    (tmp_path / "probe.key").write_text("\n".join(KEYS))
    state = tmp_path / "state"
    planted = "\n".join(f"# {line}" for line in PLANTED.splitlines())
    (tmp_path / "fabricd.toml").write_text(
        f'{planted}\n[host]\nname = "h"\n[paths]\nstate_dir = "{state}"\n'
        f'[probe]\nkey_file = "{tmp_path}/probe.key"\n'
        f'[metrics]\nlisten = "127.0.0.1:{server.server_port}"\n'
        '[[links]]\nnetdev = "rail0"\nrail = 0\n'
    )
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / f"{KEYS[0]}.toml").write_text(planted)
    with Timeline(state / "timeline.db", host="h") as timeline:
        data = {"api_key": WORD, "note": PLANTED}
        timeline.append([Event(EventKind.OPERATOR, 10**18, 1, reason=PLANTED, data=data)])
    for name in ("mode", "operator.json"):
        (state / name).write_text(PLANTED)
    real = facts.read
    monkeypatch.setattr(facts, "run", lambda argv: f"{argv}\n{PLANTED}")
    monkeypatch.setattr(
        facts, "read", lambda path: real(path) if tmp_path in path.parents else PLANTED
    )
    yield tmp_path
    server.shutdown()
    server.server_close()
    thread.join(20)


def test_the_shared_list_of_peers_is_in_it_and_a_bad_one_hides_nothing_else(etc, monkeypatch):
    monkeypatch.setattr(client, "request", lambda *_: [])
    shared, main = etc / "shared" / "list.toml", etc / "fabricd.toml"
    shared.parent.mkdir()
    shared.write_text("[[peers]\n")
    text = main.read_text().replace("[paths]\n", f'[paths]\npeers_file = "{shared}"\n')
    main.write_text(text)
    files = unpacked(collect(etc / "ctl.sock", main, 0, "root"))
    assert files["config/peers_file/list.toml"] == b"[[peers]\n"
    assert {"state/operator.json", "metrics.txt"} <= set(files)
    assert "list.toml:1: (syntax)" in json.loads(files["manifest.json"])["missing"]["config"]


def test_secrets_planted_everywhere_are_nowhere(etc, monkeypatch):
    def answer(_socket, document):
        return [DOCUMENT] if document["op"] == "links" else DOCUMENT

    monkeypatch.setattr(client, "request", answer)
    files = unpacked(collect(etc / "ctl.sock", etc / "fabricd.toml", 0, "root"))
    assert_clean(files)
    wanted = {"daemon/status.json", "daemon/explain-rail0.json", "config/fabricd.toml",
              "state/operator.json", "timeline.jsonl", "metrics.txt", "host/journal.txt",
              "host/proc-cmdline", "manifest.json", "doctor.json", "daemon/training_jobs.json",
              "daemon/migrations.json"}  # fmt: skip
    assert wanted <= set(files)
    assert b"[removed]" in files["timeline.jsonl"]
    manifest = json.loads(files["manifest.json"])
    assert set(manifest["files"]) == set(files) - {"manifest.json"}
    assert manifest["versions"]["pydantic"]
    assert manifest["missing"] == {}


def test_without_a_daemon_or_a_configuration_it_has_what_there_is(etc):
    files = unpacked(collect(etc / "none.sock", etc / "fabricd.toml", 0, "root"))
    assert_clean(files)
    missing = json.loads(files["manifest.json"])["missing"]
    assert "is fabricd running?" in missing["daemon/status.json"]
    assert "timeline.jsonl" in files
    (etc / "fabricd.toml").write_text(f'broken = [ "{KEYS[0]}"\npassword = "{WORD}"')
    files = unpacked(collect(etc / "none.sock", etc / "fabricd.toml", 0, "root"))
    assert_clean(files)
    assert "allowed: TOML 1.0" in json.loads(files["manifest.json"])["missing"]["config"]


SHADOW = "what only root may read"


def bundled_files(etc):
    return unpacked(collect(etc / "none.sock", etc / "fabricd.toml", 0, "root"))


def plant_links(state, target):
    for name in ("mode", "operator.json"):
        (state / name).unlink()
        (state / name).symlink_to(target)


def test_a_link_in_the_daemons_directory_leads_root_nowhere(etc, tmp_path):
    target = tmp_path / "shadow"
    target.write_text(SHADOW)
    plant_links(tmp_path / "state", target)
    files = bundled_files(etc)
    assert not [name for name, data in files.items() if SHADOW.encode() in data]
    assert files["state/operator.json"] == b"(not read: Too many levels of symbolic links)\n"


@pytest.mark.parametrize("name", ["mode", "operator.json", "timeline.db", "timeline.db-wal"])
def test_a_fifo_in_the_daemons_directory_keeps_nobody_waiting(etc, tmp_path, name):
    path = tmp_path / "state" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    files = bundled_files(etc)
    if name.startswith("timeline"):
        missing = json.loads(files["manifest.json"])["missing"]
        assert "not a regular file" in missing["timeline.jsonl"]
    else:
        assert files[f"state/{name}"] == b"(not read: not a regular file)\n"


def test_a_timeline_that_is_a_link_is_not_opened(etc, tmp_path):
    database = tmp_path / "state" / "timeline.db"
    database.rename(tmp_path / "elsewhere.db")
    database.symlink_to(tmp_path / "elsewhere.db")
    files = bundled_files(etc)
    assert "not a regular file" in json.loads(files["manifest.json"])["missing"]["timeline.jsonl"]
    assert "timeline.jsonl" not in files


@pytest.mark.skipif(os.geteuid() != 0, reason="root reads as another user here")
def test_root_reads_with_the_rights_of_the_directorys_owner(tmp_path):
    directory = tmp_path / "state"
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    (directory / "mode").write_text(SHADOW)
    (directory / "mode").chmod(0o600)  # root's
    found = read_as_owner(directory, 0)
    assert SHADOW not in json.dumps(asdict(found)), "read with root's rights"


def test_a_reader_that_takes_long_is_ended(tmp_path):
    found = read_as_owner(tmp_path, 0, limit_s=0.0)
    assert set(found.missing.values()) == {"not read: it did not end within 0 s"}
    assert set(found.missing) == {"state/mode", "state/operator.json", "timeline.jsonl"}


def test_what_the_reader_is_is_not_the_callers_directory_to_say(tmp_path, monkeypatch):
    trap = tmp_path / "fabricd"
    trap.mkdir()
    (trap / "__init__.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "state").mkdir()
    assert read_as_owner(tmp_path / "state", 0).files["mode"].startswith("(not read: No such file")


def test_metrics_that_drip_keep_nobody_waiting():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip():
            sock, _ = server.accept()
            with sock, contextlib.suppress(OSError):
                sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not ended.wait(0.02):
                    sock.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(TimeoutError):
            fetch_metrics(f"127.0.0.1:{server.getsockname()[1]}", limit_s=0.3)
        ended.set()
        thread.join(60)


def test_written_for_its_owner_and_over_nothing(tmp_path):
    path = tmp_path / "a.tar.gz"
    write(path, b"x")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write(path, b"y")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write(tmp_path / "link", b"y")


def test_who_prints_without_end_fills_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "MAX_PRINTED", 1 << 20)
    assert facts.run(["yes"]) == "(yes: it printed more than 1048576 bytes)\n"
    monkeypatch.setattr("fabricd.support.state.MAX_PRINTED", 10)
    found = read_as_owner(tmp_path, 0)
    assert set(found.missing.values()) == {"not read: it printed more than 10 bytes"}


def test_what_is_read_is_bounded_and_cut_at_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "MAX_READ", 100)
    (tmp_path / "f").write_text("a\n" * 20 + KEYS[0] * 2)
    assert facts.read(tmp_path / "f") == "a\n" * 20 + "(cut here)\n"
    assert facts.read(tmp_path / "none") == "(not read: No such file or directory)\n"
    assert facts.run(["no-such-tool"]) == "(no-such-tool is not installed)\n"
    assert facts.run(["false"]) == "(exit status 1)\n"
    assert facts.run(["ls", "--wrong"]).startswith("ls: unrecognized option")
    cut = facts.run(["seq", "1", "1000"])
    assert cut.startswith("(cut here)\n")
    assert cut.endswith("1000\n")
    assert len(cut) < 1700
