"""What temperature explains of a quantity, learnt link by link. Pure.

A regression with exponentially decaying weights (two days): mean and mean, covariance, variance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MEMORY = 576
"""Windows: two days of five minutes."""
_LEAST_VARIANCE = 0.25
"""K²: with less than half a degree of movement there is nothing to learn from."""


class TemperatureCompensation:
    """Slope of a quantity on temperature, of many links.

    Attributes:
        state: 5 × links: mean temperature, mean quantity, covariance, variance, how many values.
    """

    def __init__(self, links: int) -> None:
        self.state: Array = np.zeros((5, links))

    def explain(self, value: Array, celsius: Array, slopes: tuple[float, float]) -> Array:
        """Learn from a window; gives the value as it would be at the link's mean temperature.

        ``slopes``: least and largest that is believed, units per °C. NaN where the value is not
        known; without a temperature the value itself.
        """
        known = ~np.isnan(value) & ~np.isnan(celsius)
        x, y = np.where(known, celsius, 0.0), np.where(known, value, 0.0)
        mean_x, mean_y, cov, var, many = self.state
        many = many + known
        share = np.where(known, np.maximum(1 / np.maximum(many, 1), 1 / MEMORY), 0.0)
        dx, dy = x - mean_x, y - mean_y
        self.state = np.stack(
            [
                mean_x + share * dx,
                mean_y + share * dy,
                (1 - share) * (cov + share * dx * dy),
                (1 - share) * (var + share * dx * dx),
                many,
            ]
        )
        mean, _, cov, var, _ = self.state
        slope = np.where(var > _LEAST_VARIANCE, cov / np.maximum(var, 1e-9), 0.0)
        return np.where(known, value - np.clip(slope, *slopes) * (x - mean), value)

    def restore(self, rows: Any) -> None:  # noqa: ANN401 (from JSON)
        """Take over a saved `state`.

        Raises:
            TypeError, ValueError: not such rows.
        """
        state = np.array(rows, dtype=float)
        if state.shape != self.state.shape or not np.isfinite(state).all():
            raise ValueError("slopes are not what they should be")
        self.state = state
