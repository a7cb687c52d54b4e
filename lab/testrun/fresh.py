"""A bare Debian 12 in a directory, with a fresh clone: does ``./run`` install all it needs?

``python -m lab.testrun.fresh [--keep] [-- COMMAND …]`` clones the last commit into a minimal Debian
and runs there ``./run build`` and ``./run test unit``, or the given command. The machine's own apt,
pip and proxy settings and trusted certificates are carried in, so that its registries answer.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

from lab.vm import apt, cache
from lab.vm.image import bootstrap

CLONE = "/root/fabricd"
_ENVIRONMENT = re.compile(
    r"^(PIP_.*|.*_proxy|.*_PROXY|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE)$"
)
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")

# $1 tree, then pairs (directory of the host, where it is seen), then -- and the command. A mount
# and a process namespace of its own: when this shell ends, nothing is left mounted or running.
_ENTER = """
set -e
tree=$1; shift
mount -t proc proc "$tree/proc"
mount --rbind -o ro /sys "$tree/sys"
mount -t devtmpfs dev "$tree/dev"
mkdir -p "$tree/dev/shm" "$tree/dev/pts"
mount -t tmpfs shm "$tree/dev/shm"
mount -t devpts devpts "$tree/dev/pts"
mount -t tmpfs run "$tree/run"
while [ "$1" != -- ]; do
  mkdir -p "$tree$1"
  mount --bind -o ro "$1" "$tree$1"
  shift
done
shift
cd "$tree"
exec chroot "$tree" "$@"
"""


def split_certificates(bundle: str) -> list[str]:
    """The single PEM certificates of a bundle."""
    return re.findall(
        r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", bundle, flags=re.DOTALL
    )


def local_sources(pip_config: str) -> list[Path]:
    """Directories that pip's configuration names (``pip config list``): wheels, local indexes."""
    found = []
    for line in pip_config.splitlines():
        name, _, value = line.partition("=")
        if not name.endswith(("find-links", "index-url")):
            continue
        for word in value.strip("'").replace("\\n", " ").split():
            path = urlparse(word).path if word.startswith("file://") else word
            if path.startswith("/") and Path(path).is_dir():
                # An index's pages link to files beside it.
                is_index = name.endswith("index-url")
                found.append(Path(path).parent if is_index else Path(path))
    return sorted(set(found))


def _copy(path: Path, tree: Path) -> None:
    if path.is_file():
        target = tree / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def _settings(tree: Path) -> None:
    """Carry this machine's network settings into ``tree``."""
    home = Path.home()
    for path in (Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/pip.conf")):
        _copy(path, tree)
    for path in (home / ".config/pip/pip.conf", home / ".pip/pip.conf"):
        if path.is_file():
            target = tree / "root" / path.relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    if _BUNDLE.is_file():
        # As local certificates: installing ca-certificates there writes the bundle anew.
        local = tree / "usr/local/share/ca-certificates"
        local.mkdir(parents=True, exist_ok=True)
        for i, pem in enumerate(split_certificates(_BUNDLE.read_text())):
            (local / f"host-{i}.crt").write_text(pem)


@contextmanager
def machine(*, keep: bool = False) -> Iterator[Path]:
    """A directory with a minimal Debian and the last commit cloned to ``/root/fabricd``."""
    cache.ROOT.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="fresh-", dir=cache.ROOT))
    tree = scratch / "tree"
    try:
        release = apt.codename(Path("/etc/os-release").read_text())
        bootstrap(tree, release, scratch, packages=(), sealed=False)
        _settings(tree)
        origin = f"file://{cache.REPO}"
        subprocess.run(["git", "clone", "-q", "--depth", "1", origin, f"{tree}{CLONE}"], check=True)
        yield tree
    finally:
        if keep:
            print(f"kept: {tree}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)


def enter(tree: Path, command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in the clone inside ``tree``; both outputs come back as one text.

    Raises ``subprocess.TimeoutExpired``; its processes are gone then, too.
    """
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    mounts = [str(path) for path in local_sources(listing.stdout)]
    kept = [f"{k}={v}" for k, v in os.environ.items() if _ENVIRONMENT.match(k)]
    argv = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    argv += ["sh", "-ec", _ENTER, "sh", str(tree), *mounts, "--", "/usr/bin/env", "-i"]
    argv += ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    argv += ["LANG=C.UTF-8", *kept, "sh", "-ec", f'cd {CLONE}; exec "$@"', "sh", *command]
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
    )


def main() -> int:
    """Entry point; returns the first failing command's status."""
    parser = argparse.ArgumentParser(prog="python -m lab.testrun.fresh", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the directory for a look")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for each command")
    parser.add_argument("command", nargs="*", help="default: ./run build, then ./run test unit")
    args = parser.parse_args()
    commands = [args.command] if args.command else [["./run", "build"], ["./run", "test", "unit"]]
    with machine(keep=args.keep) as tree:
        for command in commands:
            began = time.monotonic()
            done = enter(tree, command, args.timeout)
            print(done.stdout)
            seconds = time.monotonic() - began
            print(f"{' '.join(command)}: status {done.returncode} after {seconds:.0f} s")
            if done.returncode != 0:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
