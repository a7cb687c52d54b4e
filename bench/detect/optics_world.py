"""A fleet of 400GBASE-DR4 links, healthy and degrading, in windows of 5 min. Seeded, pure.

Written down before the predictor (`fabricd.predict`) was run on it, and not to be changed for the
predictor's sake. What is seen is what a host sees: its receiver's FEC counters and light, its own
laser. ``ASSUMED`` marks what no source gives.

Physics. RS(544,514) corrects 15 symbols of 10 bits in a codeword of 5440 bits (IEEE 802.3 clause
91/119). A link's signal has a Q factor from which the bit error ratio before FEC follows, BER =
erfc(Q/√2)/2; Q is proportional to the light (thermal noise), so a loss in dB is a loss of Q in the
same dB. Symbol errors in a codeword are Poisson. A link *fails* when it loses one codeword a second
in its quiet moments, or its light for good.

Sources
- BER before FEC over links: log-normal, median 1e-8; links above 2e-5 do not pass acceptance
  (802.3 allows 2.4e-4). Spread ASSUMED, shape as vendors' fleet plots show.
- Readings: SFF-8472 / SFF-8636 / CMIS: 0.1 µW, 2 µA, 1/256 °C; accuracy ± 3 dB for light, so the
  absolute value says little. Noise of one reading ASSUMED 0.05 dB, 0.1 %, 0.1 °C.
- Why links corrupt: Zhuo et al., "Understanding and Mitigating Packet Corruption in Data Center
  Networks", SIGCOMM 2017: contaminated connectors 17–57 %, damaged fibre 14–48 %, bad or loose
  transceivers 6–45 %, decaying transmitters < 1 %. Time courses ASSUMED: log-uniform, see `MODES`.
- Sudden deaths (electronics, fibre cut): 30 % of all, ASSUMED; nobody can foretell them.
- Laser wear-out: bias rises as the power control makes up for lost efficiency; end of life at
  + 50 % (Telcordia GR-468-CORE); light falls when the driver is at its limit.
- Flaps: Qian et al., "Alibaba HPN", SIGCOMM 2024: 5,000 to 60,000 a day in a cluster: about one a
  link-month, and unevenly: log-normal, σ = 1.5 ASSUMED.
- Temperature: daily cycle, jobs that start and end, failures of cooling. Amplitudes ASSUMED.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fabricd.predict.signal import ber_of_q, poisson_tail, q_of_ber

Array = NDArray[np.float64]

WINDOW_S = 300
PER_DAY = 86_400 // WINDOW_S
DAYS = 30
WINDOWS = DAYS * PER_DAY
CODEWORDS = 4.25e11 / 5440 * WINDOW_S
"""Sent in a window."""
BITS = CODEWORDS * 5440
LOST_PER_WINDOW = 1.0 * WINDOW_S
"""Uncorrectable codewords that make a link fail: one a second."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of degrading: share of all failures, and how long it takes (hours, log-uniform)."""

    share: float
    hours: tuple[float, float]


MODES = {
    "dirt": Mode(0.30, (1.0, 14 * 24.0)),
    "loose": Mode(0.15, (1.0, 7 * 24.0)),
    "receiver": Mode(0.15, (0.5, 10 * 24.0)),
    "laser": Mode(0.05, (24.0, 60 * 24.0)),
    "thermal": Mode(0.05, (1 / 6, 12.0)),
    "sudden": Mode(0.30, (0.0, 0.0)),
}

# Per link-month, of what is benign. All rates ASSUMED.
RESEATS = 0.05
"""Somebody reseats or cleans: down for 1–5 min, light changes by N(0, 0.4 dB), 1–3 flaps."""
STEPS = 0.01
"""The cable was moved: light falls by 0.5–2.5 dB, at most 80 % of what is in hand, and stays."""
TOUCHES = 0.02
"""Work nearby: dips of light for 5–30 min, perhaps flaps, and over."""
PEER_REBOOTS = 0.5
"""No light and no carrier for 3–15 min."""
FLAPS_MEDIAN, FLAPS_SIGMA = 0.3, 1.5
"""Retraining after each: the equalizer settles elsewhere, log10 BER changes by N(0, 0.3)."""
STRAYS = 0.1
"""Bursts of 1–100 uncorrectable codewords out of nowhere."""
EXCURSIONS = 0.2
"""Cooling is out: + 5 to + 15 °C for 0.5 to 6 h, with the whole room."""
GLITCHES = 1e-5
"""Share of windows in which the module's readings are nonsense; another 1e-3 has none."""
CONGESTIONS = 90.0
"""Incasts of 5–60 min: retransmissions, with congestion marks."""


@dataclass(slots=True)
class World:
    """Links × windows. Readings are medians of a window's polls, counts its differences."""

    carrier: NDArray[np.bool_]
    errors: Array
    """Bits corrected."""
    tail: Array
    """Codewords with 8 to 15 symbols corrected."""
    lost: Array
    """Codewords that could not be corrected."""
    rx_dbm: Array
    tx_dbm: Array
    bias: Array
    """mA."""
    celsius: Array
    retransmits: Array
    marks: Array
    flaps: Array
    mode: list[str]
    onset: Array
    """Window in which degrading began; infinity: it does not degrade."""
    failed: Array
    """Window in which it failed; infinity: it did not."""


def _ar1(rng: np.random.Generator, n: int, sigma: float, tau_windows: float) -> Array:
    """A stationary wander of standard deviation ``sigma``, interpolated between knots."""
    step = max(1, int(tau_windows // 8))
    knots = WINDOWS // step + 2
    keep = math.exp(-step / tau_windows)
    noise = rng.standard_normal((n, knots)) * sigma * math.sqrt(1 - keep * keep)
    noise[:, 0] = rng.standard_normal(n) * sigma
    for i in range(1, knots):
        noise[:, i] += keep * noise[:, i - 1]
    at = np.arange(WINDOWS) / step
    low = at.astype(int)
    part = at - low
    return np.asarray(noise[:, low] * (1 - part) + noise[:, low + 1] * part)


def _events(rng: np.random.Generator, n: int, rate: float | Array) -> list[tuple[int, int]]:
    """(link, window) of events at ``rate`` per link-month."""
    counts = rng.poisson(rate, n)
    links = np.repeat(np.arange(n), counts)
    when = rng.integers(0, WINDOWS, links.size)
    return [(int(link), int(at)) for link, at in zip(links, when, strict=True)]


def _log_uniform(rng: np.random.Generator, span: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(math.log(span[0]), math.log(span[1]))))


def _temperature(rng: np.random.Generator, n: int) -> Array:
    """Module °C without anything degrading."""
    day = 2 * np.pi * np.arange(WINDOWS) / PER_DAY
    base = rng.normal(48, 4, n)[:, None] + rng.uniform(0.5, 3, n)[:, None] * np.sin(day)
    load = np.zeros((n, WINDOWS))
    for link, at in _events(rng, n, 60.0):
        load[link, at : at + int(rng.uniform(6, PER_DAY))] = rng.uniform(2, 8)
    room = np.zeros(WINDOWS)
    for _ in range(rng.poisson(EXCURSIONS * 4)):
        # A quarter of the fleet's rooms: those in this batch are in four.
        at, length = int(rng.integers(0, WINDOWS)), int(rng.uniform(6, 72))
        room[at : at + length] += rng.uniform(5, 15) * np.hanning(2 * length)[:length]
    rooms = np.stack([np.roll(room, k * WINDOWS // 4) for k in range(4)])
    return base + load + rooms[np.arange(n) % 4]


def _decline(rng: np.random.Generator, begin: float, end: float, steps: bool) -> Array:
    """0 at the onset, 1 at the failure and after; smooth, or a staircase of 3 to 12 steps."""
    share = np.clip((np.arange(WINDOWS) + 1 - begin) / max(end - begin, 1e-9), 0, 1)
    if steps:
        edges = np.sort(rng.uniform(0, 1, int(rng.integers(3, 13))))
        share = np.where(share >= 1, 1.0, np.searchsorted(edges, share) / (edges.size + 1))
    return np.asarray(share ** rng.uniform(0.7, 3), dtype=float)


def build(seed: int, n: int, *, degrading: bool) -> World:
    """A month of ``n`` links; ``degrading``: each of them fails, by one of `MODES`."""
    rng = np.random.default_rng(seed)
    log_ber = np.minimum(rng.normal(-8, 1.2, n), math.log10(2e-5))
    log_ber = np.maximum(log_ber, -15)
    q0 = q_of_ber(10.0**log_ber)[:, None]
    hand = (q0 - q_of_ber(np.array(2.0e-4)))[:, 0]
    celsius = _temperature(rng, n)
    warmth = celsius - 48
    light = _ar1(rng, n, 0.15, 0.5 * PER_DAY) + rng.normal(0, 0.015, n)[:, None] * warmth
    quality = _ar1(rng, n, 0.06, PER_DAY / 12) + rng.normal(-0.01, 0.01, n)[:, None] * warmth
    loss = np.zeros((n, WINDOWS))
    carrier = np.ones((n, WINDOWS), bool)
    flaps = np.zeros((n, WINDOWS))
    dips = np.zeros((n, WINDOWS))
    stray = np.zeros((n, WINDOWS))
    bias = rng.normal(60, 6, n)[:, None] * (1 + 0.008 * warmth)
    tx = rng.normal(0.5, 0.8, n)[:, None] - 0.01 * warmth

    flap_rate = FLAPS_MEDIAN * np.exp(FLAPS_SIGMA * rng.standard_normal(n))
    for link, at in _events(rng, n, flap_rate):
        flaps[link, at] += 1
        _retrain(rng, quality, q0, link, at)
    for link, at in _events(rng, n, RESEATS):
        flaps[link, at] += rng.integers(1, 4)
        carrier[link, at] = False
        loss[link, at:] += rng.normal(0, 0.4)
        _retrain(rng, quality, q0, link, at)
    for link, at in _events(rng, n, STEPS):
        loss[link, at:] += min(rng.uniform(0.5, 2.5), 0.8 * hand[link])
    for link, at in _events(rng, n, TOUCHES):
        span = slice(at, at + int(rng.integers(1, 7)))
        dips[link, span] += rng.integers(1, 20)
        flaps[link, at] += rng.integers(0, 4)
    for link, at in _events(rng, n, PEER_REBOOTS):
        carrier[link, at : at + int(rng.integers(1, 4))] = False
        flaps[link, at] += 1
    for link, at in _events(rng, n, STRAYS):
        stray[link, at] += rng.integers(1, 101)
    # Reseats may leave no margin; what benign events alone may not do is make a link fail.
    loss = np.minimum(loss, 0.8 * hand[:, None])

    onset, failed = np.full(n, np.inf), np.full(n, np.inf)
    mode = [""] * n
    if degrading:
        names, shares = list(MODES), [m.share for m in MODES.values()]
        mode = [str(x) for x in rng.choice(names, n, p=shares)]
        for link in range(n):
            end = rng.uniform(PER_DAY, WINDOWS - 2)
            failed[link] = math.floor(end)
            name = mode[link]
            if name == "sudden":
                onset[link] = failed[link]
                continue
            begin = end - _log_uniform(rng, MODES[name].hours) * 3600 / WINDOW_S
            onset[link] = begin
            course = _decline(rng, begin, end, name == "dirt" and rng.random() < 0.5)
            whole = 1.1 * hand[link]
            if name == "dirt":
                loss[link] += whole * course
            elif name == "receiver":
                quality[link] -= whole * course
            elif name == "thermal":
                celsius[link] += rng.uniform(15, 35) * course
                bias[link] *= 1 + 0.4 * course
                quality[link] -= whole * course
            elif name == "laser" and rng.random() < 0.5:
                loss[link] += whole * np.maximum(0, course - 0.3) / 0.7
            elif name == "laser":
                # Our own: the peer's receiver has the errors, we have the bias.
                bias[link] *= 1 + 0.5 * course
                tx[link] -= whole * np.maximum(0, course - 0.3) / 0.7
            else:
                rate = np.where(course > 0, 5 / 60 * 60.0**course, 0.0)
                dips[link] += rng.poisson(np.where(course < 1, rate, 0.0))
                flaps[link] += rng.poisson(0.03 * dips[link])
                loss[link] += rng.uniform(0, 0.3) * whole * course

    q = q0 + quality - loss + light * 0.3
    ber = ber_of_q(q)
    mean = 5440 * ber
    lost = CODEWORDS * poisson_tail(mean, 16)
    over = lost >= LOST_PER_WINDOW
    failed = np.minimum(failed, np.where(over.any(1), over.argmax(1), np.inf))
    onset = np.minimum(onset, failed)
    carrier &= np.arange(WINDOWS) < failed[:, None]
    # A dip lasts 10–500 ms and takes 3–10 dB: a hundredth of its bits are wrong.
    dipped = dips * np.exp(rng.uniform(math.log(0.01), math.log(0.5), dips.shape)) / WINDOW_S
    rx = rng.normal(-2.5, 1.2, n)[:, None] + light - loss
    rx_read = rx + rng.standard_normal(rx.shape) * 0.05 * 1.25 / math.sqrt(30)
    glitch = rng.random(rx.shape)
    rx_read = np.where(glitch < GLITCHES, rng.uniform(-30, 3, rx.shape), rx_read)
    lit = carrier | (rng.random(rx.shape) < 0.02)
    rx_read = np.where(
        lit, 10 * np.log10(np.maximum(_grid(10 ** (rx_read / 10), 1e-4), 1e-4)), np.nan
    )
    rx_read = np.where(glitch > 0.999, np.nan, rx_read)
    marks, retransmits = _congestion(rng, n)
    lost_now = rng.poisson(np.minimum(lost + dipped * CODEWORDS + stray, 1e12))
    retransmits += rng.poisson(np.minimum(lost_now * 0.5, 1e6))
    noise = rng.standard_normal
    return World(
        carrier=carrier,
        errors=rng.poisson(np.minimum(BITS * (ber + 0.01 * dipped), 1e15)).astype(float),
        tail=rng.poisson(CODEWORDS * (poisson_tail(mean, 8) + 0.05 * dipped)).astype(float),
        lost=lost_now.astype(float),
        rx_dbm=rx_read,
        tx_dbm=tx + noise(tx.shape) * 0.012,
        bias=_grid(bias * (1 + 0.0002 * noise(bias.shape)), 0.002),
        celsius=_grid(celsius + 0.02 * noise(celsius.shape), 1 / 256),
        retransmits=retransmits,
        marks=marks,
        flaps=flaps,
        mode=mode,
        onset=onset,
        failed=failed,
    )


def _grid(values: Array, unit: float) -> Array:
    return np.round(values / unit) * unit


def _retrain(rng: np.random.Generator, quality: Array, q0: Array, link: int, at: int) -> None:
    """From ``at`` on the link's log10 BER is another, by N(0, 0.3), but no worse than accepted."""
    ber = float(ber_of_q(q0[link])[0])
    other = min(ber * 10 ** rng.normal(0, 0.3), 4e-5)
    quality[link, at:] += float(q_of_ber(np.array(other)) - q0[link, 0])


def _congestion(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    marks = rng.poisson(2.0, (n, WINDOWS)).astype(float)
    again = rng.poisson(0.05, (n, WINDOWS)).astype(float)
    for link, at in _events(rng, n, CONGESTIONS):
        span = slice(at, at + int(rng.integers(1, 13)))
        strength = float(np.exp(rng.uniform(2, 8)))
        marks[link, span] += rng.poisson(strength * 20)
        again[link, span] += rng.poisson(strength)
    return marks, again
