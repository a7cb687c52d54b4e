"""Check of the plugin's library."""

from __future__ import annotations

from collections.abc import Iterator

from fabricd import __version__
from fabricd.doctor.facts import HostFacts
from fabricd.doctor.finding import Finding, Severity


def library(facts: HostFacts) -> Iterator[Finding]:
    """A library that is missing, does not load, or is of another release than this program."""
    plugin = facts.plugin
    if plugin.problem:
        action = "Install the wheel again, or name the library (--library); `ldd` says what lacks."
        if not plugin.path:
            action = "Install fabricd's wheel here, or name the library (--library)."
        if "GLIBC_" in plugin.problem:
            action = (
                f"The userland here is older than the glibc that the library needs "
                f"({plugin.glibc or 'unknown'}): use a newer container."
            )
        severity = Severity.CRITICAL if plugin.path else Severity.WARNING
        yield Finding(severity, "plugin", f"{plugin.problem}.", action)
        return
    if plugin.release and plugin.release != __version__:
        yield Finding(
            Severity.WARNING, "plugin",
            f"{plugin.path} is release {plugin.release}; this program is {__version__}.",
            "Upgrade both together; `fabricctl plugin check --hosts` compares all hosts of a job.",
        )  # fmt: skip
    if not plugin.release:
        yield Finding(
            Severity.WARNING, "plugin", f"{plugin.path} does not say its release.",
            "It is a library of a release before 0.1.0, or one that was stripped: install it anew.",
        )  # fmt: skip
    if facts.verbs and plugin.transports and "verbs" not in plugin.transports:
        yield Finding(
            Severity.NOTE, "plugin",
            f"{plugin.path} carries {', '.join(plugin.transports)} alone; the verbs devices here "
            "are not used.", "Nothing, until a release of the plugin with verbs is installed.",
        )  # fmt: skip
