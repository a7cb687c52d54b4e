"""The configuration's damping and hold times in the units of the state machines. Pure."""

from __future__ import annotations

from fabricd.config.loader import Config
from fabricd.links.damping import DampingRules
from fabricd.links.health import HoldRules


def damping_rules(config: Config) -> DampingRules:
    """The configuration's damping in the core's units."""
    d = config.damping
    return DampingRules(
        penalty=d.penalty,
        half_life_ns=round(d.half_life_s * 1e9),
        suppress=d.suppress,
        reuse=d.reuse,
        max_suppress_ns=round(d.max_suppress_s * 1e9),
        second_tier_flaps=d.second_tier_flaps,
        window_ns=round(d.window_s * 1e9),
        max_transitions=d.max_transitions,
    )


def hold_rules(config: Config) -> HoldRules:
    """The configuration's times of the way back in the core's units."""
    return HoldRules(round(config.hold.hold_down_s * 1e9), round(config.hold.probation_s * 1e9))
