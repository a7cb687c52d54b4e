"""The host's own apt configuration, in the form that mmdebstrap takes it.

Whatever mirror, proxy and credentials this machine uses for Debian are used for the images, too;
none is written down here.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

PATIENCE_S = 1800
"""For each step: `./run test` prepares the machines beside tests that leave little of the cores."""

_CARRIED = re.compile(
    r"^Acquire::(http|https|Retries|Check-Valid-Until|Check-Date|ForceIPv4|ForceIPv6)\b"
)


def codename(os_release: str) -> str:
    """``VERSION_CODENAME`` of the text of an os-release file; raises ``ValueError`` without one."""
    for line in os_release.splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip().strip('"')
    raise ValueError("os-release names no VERSION_CODENAME")


def _from_list(text: str, suites: set[str]) -> list[str]:
    found = []
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        match = re.match(r"deb\s+(?:\[[^\]]*\]\s+)?\S+\s+(\S+)\s+(.*)", line)
        if match and match[1] in suites and "main" in match[2].split():
            found.append(line)
    return found


def _from_deb822(text: str, suites: set[str]) -> list[str]:
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = [ln for ln in stanza.splitlines() if ln.strip() and not ln.startswith("#")]
        fields: dict[str, str] = {}
        name = ""
        for line in lines:
            if line[0].isspace():
                fields[name] += "\n " + line.strip()
            else:
                name, _, value = line.partition(":")
                name = name.lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes") == "no":
            continue
        wanted = [s for s in fields.get("suites", "").split() if s in suites]
        if wanted and "main" in fields.get("components", "").split():
            fields["suites"] = " ".join(wanted)
            fields["types"] = "deb"
            found.append(
                "\n".join(f"{k.title()}: {v}" for k, v in fields.items()).replace(": \n", ":\n")
            )
    return found


def debian_sources(etc_apt: Path, release: str) -> tuple[str, str]:
    """The configured sources of ``release`` with component main: (one-line text, deb822 text).

    Only the suites ``release``, ``-updates`` and ``-security`` count, so that third parties'
    repositories stay out. Raises ``ValueError`` when there is none.
    """
    return _sources(etc_apt, {release, f"{release}-updates", f"{release}-security"})


def other_suite(etc_apt: Path, release: str, suite: str) -> tuple[str, str]:
    """As `debian_sources`, but ``suite`` of the mirrors that have ``release`` itself.

    Use it for suites that the machine does not follow, such as another release's backports.
    """
    lines, stanzas = _sources(etc_apt, {release})
    return of_release(lines, release, suite), of_release(stanzas, release, suite)


def _sources(etc_apt: Path, suites: set[str]) -> tuple[str, str]:
    release = min(suites, key=len)
    lists = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*.list"))]
    lines = [ln for p in lists if p.is_file() for ln in _from_list(p.read_text(), suites)]
    stanzas = [
        s
        for p in sorted((etc_apt / "sources.list.d").glob("*.sources"))
        for s in _from_deb822(p.read_text(), suites)
    ]
    if not lines and not stanzas:
        raise ValueError(f"{etc_apt}: no source of {release} with component main")
    return "".join(f"{ln}\n" for ln in lines), "\n\n".join(stanzas) + ("\n" if stanzas else "")


def of_release(text: str, here: str, other: str) -> str:
    """Sources of release ``here`` with another's suites: the mirrors have both."""
    return re.sub(rf"(?<=\s){re.escape(here)}(?=[-\s])", other, text)


class PrivateApt:
    """apt with lists and a cache of its own: what it fetches, this machine never installs.

    Args:
        root: an empty directory for all of that.
        lines: one-line sources.
        stanzas: deb822 sources.
    """

    def __init__(self, root: Path, lines: str, stanzas: str) -> None:
        self._downloads = root / "downloads"
        for path in ("sources", "lists/partial", "cache/archives/partial", "downloads"):
            (root / path).mkdir(parents=True)
        for name, text in (("host.list", lines), ("host.sources", stanzas)):
            if text:
                (root / "sources" / name).write_text(text)
        settings = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": root / "sources",
            "Dir::State::Lists": root / "lists",
            "Dir::Cache": root / "cache",
            "APT::Sandbox::User": "root",
        }
        self._options = [f"-o{key}={value}" for key, value in settings.items()]
        self._run("apt-get", "update", "-q")

    def _run(self, program: str, *argv: str) -> str:
        done = subprocess.run(
            [program, *self._options, *argv],
            cwd=self._downloads,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} {' '.join(argv)}: {done.stderr[-2000:]}")
        return done.stdout

    def show(self, package: str) -> str:
        """The records of a package; raises ``RuntimeError`` when there is none."""
        return self._run("apt-cache", "show", package)

    def known(self, prefix: str) -> set[str]:
        """Names of all packages that begin with ``prefix``."""
        return set(self._run("apt-cache", "pkgnames", prefix).split())

    def unpack(self, packages: Sequence[str], target: Path) -> None:
        """Download packages and unpack their files, without their scripts, below ``target``."""
        self._run("apt-get", "download", "-q", *packages)
        for path in sorted(self._downloads.glob("*.deb")):
            subprocess.run(["dpkg", "-x", path, target], check=True, timeout=PATIENCE_S)
            path.unlink()


def carried_options() -> list[str]:
    """This machine's apt options about transport (proxy, TLS, retries), as apt.conf lines."""
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True)
    return [ln for ln in dump.stdout.splitlines() if _CARRIED.match(ln) and not ln.endswith(' "";')]
