"""What the predictor says of one link, and what that means for its weight. Pure, without NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ALARM = 0.5
"""A risk from which a link is named, unless configured."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one link.

    Attributes:
        risk: 0 to 1.
        named: it is likely to fail; with hysteresis (`fabricd.predict.risk.Rules`).
        evidence: rule → what it says, strongest first.
        left_s: until a limit is reached by the quickest trend; None: no trend.
    """

    risk: float
    named: bool
    evidence: Mapping[str, str]
    left_s: float | None = None

    @classmethod
    def of(cls, document: Any) -> Forecast:  # noqa: ANN401 (JSON of another process)
        """From JSON.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: not a forecast.
        """
        risk, left = float(document["risk"]), document["left_s"]
        if not 0 <= risk <= 1:
            raise ValueError(f"a risk of {risk}")
        left = None if left is None else float(left)
        if left is not None and not (math.isfinite(left) and left >= 0):
            raise ValueError(f"{left} s left")
        evidence = {str(rule): str(text) for rule, text in document["evidence"].items()}
        return cls(risk, bool(document["named"]), evidence, left)

    def document(self) -> dict[str, Any]:
        """JSON that `of` takes."""
        return {
            "risk": self.risk,
            "named": self.named,
            "evidence": dict(self.evidence),
            "left_s": self.left_s,
        }

    def __str__(self) -> str:
        said = "; ".join(f"{rule}: {text}" for rule, text in self.evidence.items())
        if self.left_s is not None:
            said += f"; limit in {_span(self.left_s)}"
        return f"failure risk {self.risk:.2f}" + (f" ({said})" if said else "")


def weight(risk: float, alarm: float = ALARM, most: float = 0.5) -> float:
    """Share of its capacity that a link should carry: 1 below the alarm, then `most` to its half.

    Never 0: a forecast moves load away, but takes no link out.
    """
    if risk < alarm:
        return 1.0
    beyond = 0.0 if alarm >= 1 else min(1.0, (risk - alarm) / (1 - alarm))
    return most * (1 - beyond / 2)


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
