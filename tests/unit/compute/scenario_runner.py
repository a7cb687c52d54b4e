"""Runs a scenario that a person reads: what happens to a job's hosts, and what is decided.

A file is blocks of commands, ``----``, and what came of them. Time is virtual; delays of messages
are drawn from one seed. ``FABRIC_REWRITE=1`` writes what came anew: read it before you commit it.

====================================  ==============================================================
``job NODES + SPARES [on NETWORK]``    hosts h0, h1, …; the network is rails (default) or agents
``computes N``                         so many fabric-computes (default: 1)
``cut A,B | C,D [rails|management]``   between both sides, both networks unless one is named
``deaf A``                             A hears nobody on the rails
``dead rails A`` ``heal rails A``      all rails of A
``broker off A`` ``broker on A``       the way of A to the broker
``pause A`` ``go A``                   all processes of A stand still
``crash A`` ``restart A``              A without power; A as a new boot
``prober off A``                       the prober of A ends
``flap A TIMES``                       its rails, 0.2 s away and 0.2 s back
``confirm A``                          fabric-compute confirm-lost A
``heal``                               all networks; nobody restarts
``run SECONDS``
====================================  ==============================================================

What came: each host that is fenced, with the reason; each host under suspicion at the end, with the
rule; the phase, its reason, the hosts of the ranks, and whether the job steps.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from job_world import JOB, TICK_S, World

_SEPARATOR = "----"


class Scenario:
    """One file: ``play`` returns it with what came."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text()
        self._world: World | None = None
        self._computes = 1

    def play(self) -> str:
        """The text with what came of each block in this run."""
        blocks = []
        for block in re.split(r"\n\n+(?!\Z)", self.text.strip() + "\n"):
            commands = block.split(f"\n{_SEPARATOR}")[0].strip("\n")
            fences = self._fences()
            for line in commands.splitlines():
                if not line.startswith("#"):
                    self._do(line.split())
            came = "" if self._world is None else self._came(fences)
            blocks.append(commands if _SEPARATOR not in block else f"{commands}\n----\n{came}")
        return "\n\n".join(blocks) + "\n"

    def _fences(self) -> set[str]:
        world = self._world
        return set() if world is None else {f.id for k in world.fences.values() for f in k}

    def _came(self, before: set[str]) -> str:
        world = self._world
        assert world is not None
        step = world.step
        self._run(1.0)
        assert not world.violations, world.violations
        fences = {one.id: one for known in world.fences.values() for one in known}
        lines = [
            f"{one.host} is fenced: {_plain(one.reason)}"
            for name, one in sorted(fences.items()) if name not in before
        ]  # fmt: skip
        decider = next(iter(world.deciders.values()))
        job = decider._jobs[JOB]
        phases = [one.fields for one in world.records if one.kind == "phase"]
        lines += [
            f"{host}: {one.rule}"
            for host, one in sorted(job.evidence.items())
            if one.votes.any_against and host in job.votes.agents
        ]
        why = _plain(phases[-1]["reason"])
        lines.append(f"{phases[-1]['phase']}{': ' + why if why else ''}")
        generation = job.core.generation
        lines.append(f"ranks on {' '.join(generation.hosts)}" if generation else "no generation")
        lines.append("the job steps" if world.step > step else "the job stands")
        return "\n".join(lines)

    def _run(self, seconds: float) -> None:
        assert self._world is not None
        for _ in range(round(seconds / TICK_S)):
            self._world.tick()

    def _do(self, words: list[str]) -> None:
        match words:
            case ["computes", number]:
                self._computes = int(number)
                return
            case ["job", nodes, "+", spares, *rest]:
                network = rest[1] if rest else "rails"
                self._world = World(
                    1, nodes=int(nodes), spares=int(spares), computes=self._computes,
                    network=network,
                )  # fmt: skip
                self._world.delay_s = 0.05
                self._run(3.0)
                return
        world = self._world
        assert world is not None, "the first command is job"
        hosts = world.hosts
        match words:
            case ["cut", near, "|", far, *what]:
                pairs = list(itertools.product(near.split(","), far.split(",")))
                if what == ["rails"]:
                    world.deaf |= {*pairs, *((b, a) for a, b in pairs)}
                elif what == ["management"]:
                    world.management_cut |= {frozenset(pair) for pair in pairs}
                else:
                    world.cut |= {frozenset(pair) for pair in pairs}
            case ["deaf", host]:
                world.deaf |= {(host, other) for other in hosts if other != host}
            case ["dead", "rails", host]:
                world.paths_cut.add(host)
            case ["heal", "rails", host]:
                world.paths_cut.discard(host)
            case ["heal"]:
                for cuts in (world.cut, world.deaf, world.management_cut, world.paths_cut):
                    cuts.clear()
                for one in hosts.values():
                    one.broker = True
            case ["broker", "off" | "on" as how, names]:
                for name in names.split(","):
                    hosts[name].broker = how == "on"
            case ["pause" | "go" as how, host]:
                hosts[host].paused = how == "pause"
            case ["crash", names]:
                for name in names.split(","):
                    hosts[name].up = False
            case ["restart", names]:
                for name in names.split(","):
                    hosts[name].restart()
            case ["prober", "off", host]:
                hosts[host].prober = False
            case ["flap", host, times]:
                world.flapped.add(host)
                for _ in range(int(times)):
                    world.paths_cut.add(host)
                    self._run(0.2)
                    world.paths_cut.discard(host)
                    self._run(0.2)
            case ["confirm", host]:
                for decider in world.deciders.values():
                    assert not decider.confirm_lost(host, "the PDU is off", world.now)
            case ["run", seconds]:
                self._run(float(seconds))
            case _:
                raise AssertionError(f"no command: {' '.join(words)}")


def _plain(text: str) -> str:
    """Without times, which depend on when messages arrive."""
    return re.sub(r"\d+\.\d+ s", "… s", text)
