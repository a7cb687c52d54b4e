"""``fabric-perf`` in the hosts of a guest lab."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lab.faults.truth import Row
from lab.services.perf import RankResult
from lab.vm.rdma import payload
from lab.vm.rdma.place import Place
from lab.vm.wire import Job, Result

Collective = Literal["p2p", "ring", "alltoall"]


def moved_bytes(rows: Sequence[Row]) -> int:
    """Bytes of the collective that a rank has done so far. Pure."""
    return max((int(row["bytes"]) for row in rows if row["type"] == "sample"), default=0)


def longest_stall_ns(rows: Sequence[Row]) -> int:
    """Longest time in which a rank's ``bytes`` did not grow, on the guest's clock. Pure.

    Its resolution is the job's ``--interval-ms``. The time before the first byte and after the
    last one counts for nothing.
    """
    longest, last_ns, last_bytes = 0, 0, 0
    for row in rows:
        if row["type"] != "sample" or row["bytes"] <= last_bytes:
            continue
        if last_bytes:
            longest = max(longest, int(row["t_ns"]) - last_ns)
        last_ns, last_bytes = int(row["t_ns"]), int(row["bytes"])
    return longest


class GuestPerf:
    """One job: a rank per place, in that order.

    Args:
        places: where the ranks run.
        collective: p2p, ring or alltoall.
        args: further arguments of fabric-perf.
        directory: of the guest, for the ranks' time series.
        rendezvous: fabric-perf's, for all ranks.
        env: variables beside ``NCCL_SOCKET_IFNAME=rail``.
        plugin: path in the guest.
        timeout: seconds after which the guest kills a rank.
    """

    def __init__(
        self,
        places: Sequence[Place],
        collective: Collective,
        args: Sequence[str],
        directory: str,
        rendezvous: str,
        env: Mapping[str, str],
        plugin: str,
        timeout: float,
    ) -> None:
        self._places, self._directory = list(places), directory
        variables = {"NCCL_SOCKET_IFNAME": "rail", **payload.LOADER, **env}
        self.ranks: list[Job] = []
        for rank, place in enumerate(self._places):
            command = [payload.PERF, collective, "--plugin", plugin]
            command += ["--rank", str(rank), "--world", str(len(places))]
            command += ["--rendezvous", rendezvous, "--jsonl", self._series(rank), *args]
            begin = ["sh", "-c", f'mkdir -p {directory} && exec "$@"', "sh", *command]
            self.ranks.append(place.begin(begin, timeout=timeout, env=variables))

    def _series(self, rank: int) -> str:
        return f"{self._directory}/rank{rank}.jsonl"

    @property
    def running(self) -> bool:
        """Whether any rank still runs."""
        return any(rank.running for rank in self.ranks)

    def rows(self, rank: int) -> list[Row]:
        """The rank's time series so far; a line that is being written is left for later."""
        text = self._places[rank].run(["cat", self._series(rank)]).out
        whole = text[: text.rfind("\n") + 1]
        return [json.loads(line) for line in whole.splitlines() if line]

    def wait(self) -> list[RankResult]:
        """Until all ranks have ended, by themselves or at their time limit (status -9)."""
        ends = [rank.wait() for rank in self.ranks]
        return [self._result(rank, end) for rank, end in enumerate(ends)]

    def log(self, rank: int) -> str:
        """What a rank that has ended wrote, with ``--verbose`` the plugin's log as well."""
        end = self.ranks[rank].wait()
        return end.out + end.err

    def _result(self, rank: int, end: Result) -> RankResult:
        rows = self.rows(rank)
        last: list[dict[str, Any]] = [row for row in rows if row["type"] == "end"]
        errors = [row for row in rows if row["type"] == "error"]
        if end.rc not in (0, -9) and not errors:
            errors = [{"type": "error", "text": f"{end.out[-1000:]}{end.err[-1000:]}"}]
        return RankResult(rank, end.rc, last[-1] if last else {}, errors)

    def interrupt(self) -> None:
        """SIGINT to all ranks: they agree on a last iteration."""
        for rank in range(len(self.ranks)):
            number = next(row["pid"] for row in self.rows(rank) if row["type"] == "start")
            self._places[rank].run(["kill", "-INT", str(number)])

    def kill(self) -> None:
        """SIGKILL to all ranks."""
        for rank in self.ranks:
            if rank.running:
                rank.kill()
