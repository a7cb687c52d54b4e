"""``fabricctl plugin env``: lines that work when a shell, a YAML parser or JSON reads them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fabricd.cli
from fabricd.cli import plugin_env
from fabricd.cli.plugin_env import LIBRARY, MOST_JOB, PluginError, find_library
from telemetry.statslayout import HEADER_FIELDS

SPACED = Path("/opt/a dir/lib") / LIBRARY
CONFIG = """
[paths]
run_dir = "/run/other"
[[links]]
netdev = "rail0"
rail = 0
address = "10.0.0.1"
"""


def lines(form, *, by_name=False, job="", library=SPACED):
    run_dir = Path("/run/fabricd")
    env = plugin_env.variables(library, run_dir, by_name=by_name, job=job)
    return plugin_env.render(form, env, plugin_env.mounts(library, run_dir))


def shell(text, names):
    script = text + "".join(f'printf "%s\\n" "${name}"\n' for name in names)
    done = subprocess.run(
        ["sh", "-euc", script], capture_output=True, text=True, check=True,
        env={"LD_LIBRARY_PATH": "/first"},
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.parametrize("form", ["sh", "slurm"])
def test_a_shell_takes_it(form):
    text = lines(form, job="it's mine; $HOME")
    names = ["NCCL_NET_PLUGIN", "FABRIC_RUN_DIR", "FABRIC_JOB"]
    assert shell(text, names) == [str(SPACED), "/run/fabricd", "it's mine; $HOME"]


def test_a_name_that_a_stats_page_would_change_is_refused():
    longest = dict(HEADER_FIELDS)["job"]
    assert longest == f"{MOST_JOB + 1}s", "and a NUL"
    assert "FABRIC_JOB" in lines("sh", job="j" * MOST_JOB)
    for job in ("j" * (MOST_JOB + 1), "train\n", "größe"):
        with pytest.raises(PluginError, match="has room for 63 printable ASCII characters"):
            lines("sh", job=job)


def test_by_name_the_search_path_is_put_before_what_was_there():
    text = lines("sh", by_name=True)
    assert shell(text, ["NCCL_NET_PLUGIN", "LD_LIBRARY_PATH"]) == [
        "fabric",
        "/opt/a dir/lib:/first",
    ]


def test_json():
    document = json.loads(lines("json"))
    assert document["env"]["NCCL_NET_PLUGIN"] == str(SPACED)
    assert document["mounts"] == [
        {"path": "/opt/a dir/lib", "read_only": True},
        {"path": "/run/fabricd", "read_only": False},
    ]


def test_docker_arguments_are_one_command():
    words = shell("set -- " + lines("docker") + 'for x in "$@"; do printf "%s\\n" "$x"; done\n', [])
    assert words == [
        *("--network", "host"),
        *("-e", f"NCCL_NET_PLUGIN={SPACED}", "-e", "FABRIC_RUN_DIR=/run/fabricd"),
        *("-v", "/opt/a dir/lib:/opt/a dir/lib:ro", "-v", "/run/fabricd:/run/fabricd"),
    ]


def test_kubernetes_names_each_volume_where_it_is_mounted():
    text = lines("k8s")
    for name in ("fabricd-lib", "fabricd-run"):
        assert text.count(f"name: {name},") == 2
    assert 'value: "/opt/a dir/lib/libnccl-net-fabric.so"' in text


def test_what_is_no_library_is_named(tmp_path):
    with pytest.raises(PluginError, match="no plugin library; looked for"):
        find_library(tmp_path / LIBRARY)
    (tmp_path / LIBRARY).write_text("no ELF")
    with pytest.raises(PluginError, match="does not load"):
        find_library(tmp_path / LIBRARY)
    other = next(Path("/lib").glob("*/libm.so.6"))
    with pytest.raises(PluginError, match="is no NCCL network plugin"):
        find_library(other)


def test_the_installed_one_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert plugin_env.candidates()[0] == tmp_path / "lib" / LIBRARY


def invoke(*args):
    return CliRunner().invoke(fabricd.cli.app, ["plugin", "env", *args])


def test_the_command_takes_run_dir_from_the_daemons_configuration(tmp_path):
    config = tmp_path / "fabricd.toml"
    config.write_text(CONFIG)
    if not any(path.is_file() for path in plugin_env.candidates()):
        pytest.fail("the plugin is not built: ./run build")
    shown = invoke("--config", str(config))
    assert shown.exit_code == 0, shown.output
    name, run_dir = shell(shown.output, ["NCCL_NET_PLUGIN", "FABRIC_RUN_DIR"])
    assert Path(name).is_absolute()
    assert Path(name).name == LIBRARY
    assert run_dir == "/run/other"


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("--library", "/nonexistent/x.so"), 1),
        (("--config", "/nonexistent/x.toml"), 1),
        (("--format", "csh"), 2),
    ],
)
def test_wrong_use_has_a_status_and_prints_no_lines(args, status):
    shown = invoke(*args)
    assert shown.exit_code == status
    assert "export" not in shown.stdout


def test_the_run_directory_of_the_environment_is_the_jobs_too(tmp_path, monkeypatch):
    """Else the job would not find the daemon that its shell was set up for."""
    monkeypatch.setattr(plugin_env, "find_library", lambda _named: SPACED)
    monkeypatch.setenv("FABRIC_RUN_DIR", "/run/lab/h0")
    assert shell(invoke().output, ["FABRIC_RUN_DIR"]) == ["/run/lab/h0"]
    assert shell(invoke("--run-dir", "/run/x").output, ["FABRIC_RUN_DIR"]) == ["/run/x"]
    config = tmp_path / "fabricd.toml"
    config.write_text(CONFIG)
    named = invoke("--config", str(config))
    assert shell(named.output, ["FABRIC_RUN_DIR"]) == ["/run/other"], "a file that is named"
