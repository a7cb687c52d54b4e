"""Why a port has no carrier, as its driver says it: ETHTOOL_MSG_LINKSTATE_GET. Pure.

Few drivers say it (mlx5, mlxsw, bnxt, hns3, sfc); of the others there is no reason. Numbers:
``enum ethtool_link_ext_state`` and its substates in include/uapi/linux/ethtool.h (since Linux 5.9).
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.counters.nlattr import Attributes, first


@dataclass(frozen=True, slots=True)
class DownReason:
    """Why there is no carrier.

    Attributes:
        word: for labels of metrics, as ``no_cable``.
        text: for people.
    """

    word: str
    text: str


STATES = {
    0: DownReason("autoneg", "autonegotiation fails"),
    1: DownReason("link_training_failure", "link training fails"),
    2: DownReason("link_logical_mismatch", "the two ends do not match (coding or FEC)"),
    3: DownReason("bad_signal_integrity", "bad signal integrity"),
    4: DownReason("no_cable", "no cable"),
    5: DownReason("cable_issue", "cable issue"),
    6: DownReason("eeprom_issue", "the module's EEPROM cannot be read"),
    7: DownReason("calibration_failure", "calibration fails"),
    8: DownReason("power_budget_exceeded", "the port has not the power that its module wants"),
    9: DownReason("overheat", "the module is too hot"),
    10: DownReason("module", "the module is not ready"),
    11: DownReason("otp_speed_violation", "the NIC is not licensed for this speed"),
    12: DownReason("bmc_request_down", "the host's BMC holds it down"),
}
SUBSTATES = {
    (0, 1): "no partner detected",
    (0, 2): "the partner does not acknowledge",
    (0, 3): "exchange of next pages failed",
    (0, 4): "no partner detected at the forced speed",
    (0, 5): "FEC of the two ends differs",
    (0, 6): "no speed that both ends have",
    (1, 1): "no frame lock",
    (1, 2): "no lock in time",
    (1, 3): "the partner is not ready to receive",
    (1, 4): "remote fault: the other end is not ready",
    (2, 1): "PCS has no block lock",
    (2, 2): "PCS has no alignment markers",
    (2, 3): "PCS is not aligned",
    (2, 4): "FC-FEC is not locked",
    (2, 5): "RS-FEC is not locked",
    (3, 1): "many physical errors",
    (3, 2): "a rate that the cable is not made for",
    (3, 3): "SerDes has no reference clock",
    (3, 4): "SerDes has lost the signal",
    (5, 1): "unsupported cable",
    (5, 2): "the cable test failed",
    (10, 1): "CMIS module not ready",
}
REMOTE_FAULT = (1, 4)


def down_reason(attributes: Attributes) -> DownReason | None:
    """Of a LINKSTATE_GET reply; None: it has carrier, or the driver does not say why not."""
    state = first(attributes, "ETHTOOL_A_LINKSTATE_EXT_STATE")
    if state is None or first(attributes, "ETHTOOL_A_LINKSTATE_LINK"):
        return None
    substate = first(attributes, "ETHTOOL_A_LINKSTATE_EXT_SUBSTATE")
    known = STATES.get(state, DownReason(f"state_{state}", f"extended state {state}"))
    if (state, substate) == REMOTE_FAULT:
        return DownReason("remote_fault", SUBSTATES[REMOTE_FAULT])
    more = SUBSTATES.get((state, substate))
    return DownReason(known.word, f"{known.text}: {more}") if more else known
