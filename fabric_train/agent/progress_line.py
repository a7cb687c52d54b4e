"""One line on how far a job is, for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fabric_train.rules.coordinator import RecoveryRecord

TERMINAL_S, ELSE_S = 1.0, 30.0
"""Between two lines, unless it is said."""
_RATE_S = 30.0


class ProgressLine:
    """Times are seconds, monotonic, as those of the records."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def text(
        self, step: int, generation: int, records: Sequence[RecoveryRecord], now: float
    ) -> str:
        """``step`` steps are applied, in ``generation``; ``records``: all recoveries."""
        if not generation:
            return "waits for its ranks"
        self._seen.append((now, step))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _RATE_S:
            del self._seen[0]
        began, first = self._seen[0]
        rate = (step - first) / (now - began) if now > began else 0.0
        taken = [one for one in records if one.ranks]
        parts = [f"step {step}", f"{rate:.3g} steps/s", f"generation {generation}"]
        if not taken:
            return ", ".join([*parts, "no takeover"])
        last, again = taken[-1], sum(one.again or 0 for one in records)
        ranks = ", ".join(map(str, last.ranks))
        parts += [
            f"{len(taken)} takeover{'s' * (len(taken) > 1)}",
            f"the last {max(0.0, now - last.lost_at):.0f} s ago (rank {ranks}: {last.reason:.80})",
        ]
        if again:
            parts.append(f"{again} step{'s' * (again > 1)} run again")
        return ", ".join(parts)
