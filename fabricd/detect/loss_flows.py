"""What the losses of one flow say to `fabricd.detect.locate`. Pure.

An element that loses does so at one rate on all that passes it. So a flow's losses speak for an
element *at a rate*: the one that the element's other flows show, too. Four per cent of a cable's
packets may be a third of one path's, and then it is not the cable that loses.

For each of `RATES` a flow says how well its losses are explained by an element of that rate:

* A flow that loses at this rate, or within a factor of two, says all that it has against "nothing
  fails", as far as one flow may.
* One that loses less says less, and speaks against the element at last.
* One that loses more does not speak for it; nor against, for another fault may be on its way.
"""

from __future__ import annotations

from fabricd.detect.locate import Flow, Port
from fabricd.detect.loss_rules import SICK, LossCount, LossRules, loss_ratio

RATES = tuple(min(1.0, SICK * 2**power) for power in range(12))
"""At which an element may lose: from the least that is to be found to all."""
ALIKE = 2.0
"""Two rates of one element differ by so much: of its ports, or of packets of two lengths."""


def flow(source: Port, target: Port, calm: LossCount, queued: LossCount, rules: LossRules) -> Flow:
    """The flow between two ports, by its losses without a queue on it and behind one.

    Full queues drop too: what was lost behind one speaks by the rates of the congested test.
    """

    def against_well(rate: float) -> float:
        behind = loss_ratio(*queued, max(rate, full.sick), full.normal)
        return loss_ratio(*calm, rate, rules.usual) + behind

    full, most = rules.congested, rules.places.most
    own = _rate(calm) or _rate(queued)
    best = max(0.0, against_well(own))
    if not best:  # It is well, whatever full queues dropped.
        at = tuple(max(-most, against_well(rate / ALIKE)) for rate in RATES)
        return Flow(source, target, at[0], at)
    said = min(most, best)
    fits = []
    for rate in RATES:
        near = min(max(own, rate / ALIKE), rate * ALIKE)
        ratio = said if near == own else said - best + against_well(near)
        fits.append(max(0.0 if own > near else -most, ratio))
    return Flow(source, target, said, tuple(fits))


def _rate(count: LossCount) -> float:
    return count.lost / max(count.packets, count.lost) if count.lost else 0.0
