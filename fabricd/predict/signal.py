"""Bit error ratio and signal quality in dB. Pure.

A bit error ratio bends when light falls at an even pace, the Q factor does not: BER = erfc(Q/√2)/2
(Gaussian noise), and Q is proportional to the light where the receiver's own noise rules (Agrawal,
Fiber-Optic Communication Systems, section 4.6). So trends are taken of Q in optical dB.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Acklam's rational approximation of the normal quantile (relative error < 1.2e-9), tail part and
# middle part, as published by its author.
_A = np.array(
    [
        *(-39.69683028665376, 220.9460984245205, -275.9285104469687),
        *(138.3577518672690, -30.66479806614716, 2.506628277459239),
    ]
)
_B = np.array(
    [
        *(-54.47609879822406, 161.5858368580409, -155.6989798598866),
        *(66.80131188771972, -13.28068155288572, 1.0),
    ]
)
_C = np.array(
    [
        *(-0.007784894002430293, -0.3223964580411365, -2.400758277161838),
        *(-2.549732539343734, 4.374664141464968, 2.938163982698783),
    ]
)
_D = np.array([0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1.0])
_LOW = 0.02425


def q_of_ber(ber: Array) -> Array:
    """Q in dB (10·log10 of the factor) at a bit error ratio in (0, 0.4]."""
    p = np.clip(np.asarray(ber, dtype=float), 1e-300, 0.4)
    t = np.sqrt(-2 * np.log(p))
    tail = -np.polyval(_C, t) / np.polyval(_D, t)
    x = p - 0.5
    r = x * x
    middle = -x * np.polyval(_A, r) / np.polyval(_B, r)
    factor = np.where(p < _LOW, tail, middle)
    return np.asarray(10 * np.log10(factor))


def ber_of_q(q_db: Array) -> Array:
    """Bit error ratio at a Q in dB: the inverse of `q_of_ber`, within 2 % below a ratio of 0.1.

    Upper tail of the normal distribution by Börjesson and Sundberg (IEEE Trans. Commun. 1979).
    """
    x = 10 ** (np.asarray(q_db, dtype=float) / 10)
    below = (1 - 0.344) * x + 0.344 * np.sqrt(x * x + 5.334)
    return np.asarray(np.exp(-x * x / 2) / (np.sqrt(2 * np.pi) * below))


def poisson_tail(mean: Array, k: int) -> Array:
    """P(X ≥ k) for a Poisson variable; exact to 1 % where it matters (mean < k / 2)."""
    small = np.minimum(mean, 0.9 * k)
    log_term = k * np.log(np.maximum(small, 1e-30)) - small - math.lgamma(k + 1)
    value = np.exp(log_term) / (1 - small / (k + 1))
    return np.clip(np.where(mean > 0.9 * k, 0.5, value), 0.0, 1.0)
