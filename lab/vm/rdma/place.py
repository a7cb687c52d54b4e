"""Where a command runs: in a virtual machine, or in one of its network namespaces."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.vm.machine import Vm
from lab.vm.wire import Job, Result, VmError


@dataclass(frozen=True, slots=True)
class Place:
    """A machine, and a network namespace of it ('' is the machine's own)."""

    vm: Vm
    ns: str = ""

    def argv(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """``command`` as the machine's agent has to start it."""
        words = ["env", *(f"{key}={value}" for key, value in env.items())] if env else []
        inside = ["ip", "netns", "exec", self.ns] if self.ns else []
        return [*inside, *words, *command]

    def begin(
        self,
        command: Sequence[str],
        *,
        timeout: float = 300,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """Start ``command``; the guest kills it after ``timeout`` seconds."""
        return self.vm.begin(*self.argv(command, env), timeout=timeout, stdin=stdin)

    def run(
        self,
        command: Sequence[str],
        *,
        timeout: float = 300,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run ``command`` to its end."""
        return self.begin(command, timeout=timeout, stdin=stdin, env=env).wait()

    def script(self, lines: Sequence[str], *, timeout: float = 300) -> Result:
        """Run shell ``lines`` until the first one fails.

        Raises:
            VmError: one failed; the text ends with the commands before it, as ``set -x`` has them.
        """
        done = self.run(["sh", "-exc", "\n".join(lines)], timeout=timeout)
        if done.rc != 0:
            where = f"{self.vm.name} {self.ns}".strip()
            raise VmError(f"{where}: a script failed ({done.rc}):\n{done.err[-1500:]}")
        return done


def here_document(command: str, lines: Sequence[str]) -> str:
    """A shell command that reads ``lines`` from its standard input."""
    return f"printf '%s\\n' {shlex.join(lines)} | {command}"
