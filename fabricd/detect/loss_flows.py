"""What the losses of one flow say to `fabricd.detect.locate`. Pure.

An element that loses does so at one rate on all that passes it. So a flow's losses speak for an
element *at a rate*: the one that the element's other flows show, too. Four per cent of a cable's
packets may be a third of one path's, and then it is not the cable that loses.

For each of `RATES` a flow says how well its losses are explained by an element of that rate:

* A flow that loses at about this rate says all that it has against "nothing fails", as far as one
  flow may.
* One that loses less says less, and speaks against the element at last.
* One that loses more does not speak for it; nor against, for another fault may be on its way.
"""

from __future__ import annotations

import math
from functools import lru_cache

from fabricd.detect.locate import Flow, Port
from fabricd.detect.loss_rules import SICK, LossCount, LossRules
from fabricd.detect.sequential import Test

RATES = tuple(min(1.0, SICK * 2 ** (power / 2)) for power in range(23))
"""At which an element may lose: from the least that is to be found to all."""
MOST_LOST = 64.0
"""What a flow lost says of its rate no more than so many losses do: an element's ports, or packets
of two lengths, may differ by a tenth or two."""


def flow(source: Port, target: Port, calm: LossCount, queued: LossCount, rules: LossRules) -> Flow:
    """The flow between two ports, by its losses without a queue on it and behind one.

    Full queues drop too: what was lost behind one speaks by the rates of the congested test.
    """
    calm, queued = _few(calm), _few(queued)
    most = rules.places.most
    known = [
        calm.lost * gain - calm.packets * cost + queued.lost * behind - queued.packets * cost_behind
        for gain, cost, behind, cost_behind in _weights(rules.usual, rules.congested)
    ]
    best = max(known)
    if best <= 0:  # It is well, whatever full queues dropped.
        at = tuple(max(-most, ratio) for ratio in known)
        return Flow(source, target, at[0], at)
    own, said = known.index(best), min(most, best)
    fits = (max(-most if own <= at else 0.0, said - best + ratio) for at, ratio in enumerate(known))
    return Flow(source, target, said, tuple(fits))


@lru_cache
def _weights(usual: float, full: Test) -> list[tuple[float, float, float, float]]:
    """For each of `RATES`: nats of a loss and of a packet, without a queue and behind one."""
    out = []
    for rate in RATES:
        queued = max(rate, full.sick)
        calm = math.log(rate / usual), rate - usual
        out.append((*calm, math.log(queued / full.normal), queued - full.normal))
    return out


def _few(count: LossCount) -> LossCount:
    if count.lost <= MOST_LOST:
        return count
    return LossCount(MOST_LOST, count.packets * MOST_LOST / count.lost)
