"""accept.sh from end to end beside stand-ins for ssh, fabricctl, NCCL's tests and the switch.

The stand-in for all_reduce_perf looks at the port that the switch commands disable, as real traffic
would. What has to hold whatever happens: a port that was disabled is enabled again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.hw import report

SCRIPT = Path(report.__file__).with_name("accept.sh")
SLOW_S = 90.0
ANSWER = {
    "fabricd_plugin_check": 1, "ports": [{"name": f"mlx5_{n}/1"} for n in range(4)],
    "plugin": {"transports": ["tcp", "verbs"], "problem": ""},
}  # fmt: skip
MPIRUN = """#!{python}
import os, signal, sys, time
words, here = sys.argv[1:], {here!r}
network = "IB" if "NCCL_NET=IB" in words else "FABRIC"
print("gpu-01:1:1 [0] NCCL INFO Using network", network)
print(f"gpu-01:1:1 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] via NET/{{network}}/0/GDRDMA")
def row(size, bus):
    print(f"{{size}} {{size // 4}} float sum -1 2500 1.0 {{bus}} 0 2500 1.0 {{bus}} 0", flush=True)
if "-N" not in words:
    for size in (8, 67108864, 268435456, 1073741824):
        row(size, 50.0)
    sys.exit(0)
open(here + "/job", "w").write(str(os.getpid()))
left = 20  # cycles after the port is back, however slow this machine is
while left:
    time.sleep(0.1)
    left -= os.path.exists(here + "/ups")
    down = os.path.exists(here + "/port-is-down")
    if down and os.path.exists(here + "/port-kills"):
        sys.exit(6)
    row(268435456, 38.0 if down else 50.0)
"""
FABRICCTL = """#!{python}
import json, os, sys, time
here = {here!r}
words = " ".join(sys.argv[1:])
if words.startswith("plugin check"):
    print(json.dumps({answer!r}, separators=(",", ":")))
elif words.startswith("doctor"):
    print(json.dumps({{"findings": []}}))
    sys.exit(1)
elif words.startswith("timeline"):
    at = open(here + "/went-down").read() if os.path.exists(here + "/went-down") else "0"
    print(json.dumps([{{"kind": "link_state", "to": "down", "wall_ns": int(float(at) * 1e9)}}]))
"""


@pytest.fixture
def bench(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    here = {"python": sys.executable, "here": str(tmp_path), "answer": ANSWER}
    texts = {
        "ssh": '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n',
        "mpirun": MPIRUN.format(**here),
        "fabricctl": FABRICCTL.format(**here),
        "nvidia-smi": "#!/bin/sh\necho 'GPU 0: H100'\necho 'GPU 1: H100'\n",
        "all_reduce_perf": "#!/bin/sh\n",
        "down": f"#!/bin/sh\ndate +%s.%N > {tmp_path}/went-down\ntouch {tmp_path}/port-is-down\n",
        "up": f"#!/bin/sh\nrm {tmp_path}/port-is-down\necho up >> {tmp_path}/ups\n",
    }
    for name, text in texts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "plugin.so").write_text("")
    return tmp_path


def start(bench, **changes):
    tools = bench / "tools"
    options = {"hosts": "h1,h2", "nccl-tests": tools, "plugin": bench / "plugin.so",
               "port-down": "down", "port-up": "up", "fault-after": 1, "fault-for": 1,
               "out": bench / "out"} | changes  # fmt: skip
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    env = dict(os.environ) | {"PATH": f"{tools}:{os.environ['PATH']}"}
    return subprocess.Popen(
        ["/bin/bash", SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=env, cwd=bench,
    )  # fmt: skip


def ended(process):
    out, errors = process.communicate(timeout=SLOW_S)
    return process.returncode, out, errors


def until(condition, what):
    end = time.monotonic() + SLOW_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def no_job(bench):
    pid = int((bench / "job").read_text())
    with contextlib.suppress(OSError):
        until(lambda: not Path(f"/proc/{pid}/cmdline").read_bytes(), "the job runs on")


def test_a_whole_run(bench):
    code, out, errors = ended(start(bench))
    document = json.loads((bench / "out" / "report.json").read_text())
    rows = {row["name"]: row for row in document["rows"]}
    # A busy machine stalls the stand-in: of times nothing is asked here.
    stall = "port disabled: longest stall"
    assert [n for n, row in rows.items() if row["ok"] is False and n != stall] == [], errors
    assert code == (0 if rows[stall]["ok"] else 1), out
    assert rows["port disabled: bus bandwidth on the NICs left"]["got"] == 38.0
    assert document["meta"]["nics"] == 4
    assert (bench / "ups").read_text() == "up\n", "once"


def test_a_job_that_dies_of_the_port_does_not_hold(bench):
    (bench / "port-kills").touch()
    code, out, _ = ended(start(bench))
    assert code == 1
    assert "NO" in next(line for line in out.splitlines() if "exit status of the job" in line)
    assert not (bench / "port-is-down").exists()


def test_stopped_in_mid_fault_the_port_comes_back_and_the_job_ends(bench):
    process = start(bench, **{"fault-for": 60})
    until((bench / "port-is-down").exists, "the port is disabled")
    process.send_signal(signal.SIGTERM)
    # Bash runs a trap when its sleep has ended: that is a child, which nobody signalled.
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text().strip() == "sleep":
            os.kill(int(child), signal.SIGTERM)
    code, _, errors = ended(process)
    assert code != 0
    assert not (bench / "port-is-down").exists(), errors
    no_job(bench)


def test_a_port_command_that_fails_is_said_and_undone(bench):
    code, _, errors = ended(start(bench, **{"port-down": "touch port-is-down; false"}))
    assert code == 2
    assert "--port-down failed" in errors
    assert not (bench / "port-is-down").exists()
    no_job(bench)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nvidia-smi", "#!/bin/sh\nexit 9\n", "GPUs on h1; nvidia-smi and GPUs on h2"),
        ("ssh", "#!/bin/sh\necho Denied >&2\nexit 255\n", "ssh to h1 without a password (Denied)"),
        ("fabricctl", "#!/bin/sh\nexit 127\n", "a running fabricd on h1"),
        ("all_reduce_perf", None, "all_reduce_perf on h1"),
    ],
)  # fmt: skip
def test_what_is_missing_on_the_hosts_is_named_before_anything_runs(bench, name, text, words):
    tool = bench / "tools" / name
    tool.write_text(text) if text else tool.unlink()
    code, _, errors = ended(start(bench))
    assert code == 2
    assert words in errors
    assert not (bench / "out" / "stock.log").exists()
