"""The host's own apt configuration, in the form that mmdebstrap takes it.

Whatever mirror, proxy and credentials this machine uses for Debian are used for the images, too;
none is written down here.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

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
    suites = {release, f"{release}-updates", f"{release}-security"}
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


def carried_options() -> list[str]:
    """This machine's apt options about transport (proxy, TLS, retries), as apt.conf lines."""
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True)
    return [ln for ln in dump.stdout.splitlines() if _CARRIED.match(ln) and not ln.endswith(' "";')]
