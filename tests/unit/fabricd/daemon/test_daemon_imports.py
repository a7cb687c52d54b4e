"""What the daemon does not load; each in a process of its own, since imports stay."""

import subprocess
import sys


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_daemon_does_without_the_large_ones():
    loaded = run("import fabricd.daemon, sys; print(*sys.modules)")
    heavy = {"numpy", "rich", "scapy", "typer", "pyroute2.ndb.main", "pyroute2.ipdb"}
    assert not heavy & set(loaded)
    assert "pyroute2.iproute.linux" in loaded
    roots = ("aiomqtt", "paho", "telemetry.broker.", "telemetry.messages", "fabricd.escalate.")
    assert [name for name in loaded if name.startswith(roots)] == [], "of use with a broker only"


def test_all_of_pyroute2_is_there_for_who_asks():
    said = run(
        "import fabricd.process.lazy_imports, pyroute2, sys\n"
        "from pyroute2 import netns\n"
        "print('pyroute2.ndb.main' in sys.modules, netns.__name__)\n"
        "from pyroute2 import NDB, IPRoute\n"
        "print(NDB.__name__, 'pyroute2.ndb.main' in sys.modules, hasattr(pyroute2, 'nonsense'))\n"
    )
    assert said == ["False", "pyroute2.netns", "NDB", "True", "False"]


def test_rich_can_be_imported_afterwards():
    assert run("import fabricd.process.lazy_imports, rich.console; print(rich.__name__)") == [
        "rich"
    ]


def test_what_is_loaded_already_stays():
    program = (
        "import pyroute2; before = pyroute2; import fabricd.process.lazy_imports, sys\n"
        "print(sys.modules['pyroute2'] is before, before.IPRoute.__name__)"
    )
    assert run(program) == ["True", "IPRoute"]
