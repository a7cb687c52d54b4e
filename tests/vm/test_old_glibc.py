"""The plugin in the userland of an older training container (glibc 2.31): it loads and carries."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.vm import cache
from lab.vm.image import bootstrap

pytestmark = pytest.mark.nightly

REPO = Path(__file__).resolve().parents[2]
LIBRARY = (
    REPO / "build" / os.environ.get("FABRIC_BUILD", "release") / "nccl_plugin/libnccl-net-fabric.so"
)
SCRIPT = Path(__file__).parent / "guest" / "talk_to_itself.py"
RELEASE, GLIBC = "bullseye", "2.31"

# $1 tree, then the command. A network of its own that has loopback alone.
ENTER = """
ip link set lo up
tree=$1; shift
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
cd "$tree"
exec chroot "$tree" /usr/bin/env -i PATH=/usr/bin:/bin NCCL_SOCKET_IFNAME=lo "$@"
"""


@pytest.fixture(scope="module")
def userland():
    def build(out):
        bootstrap(out / "tree", RELEASE, out, ("python3",), sealed=True)

    made = cache.made_once("userland", cache.digest(RELEASE, "python3", "1"), build, keep=0)
    return made / "tree"


def test_it_carries_messages_there(userland):
    for file in (LIBRARY, SCRIPT):
        shutil.copy(file, userland / "mnt")
    argv = ["unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork"]
    argv += ["--kill-child", "sh", "-ec", ENTER, "sh", str(userland)]
    argv += ["python3", f"/mnt/{SCRIPT.name}", f"/mnt/{LIBRARY.name}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"done with glibc {GLIBC}" in done.stdout
