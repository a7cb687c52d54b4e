"""What a module reads, for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def in_words(gauges: Mapping[str, float]) -> str:
    """The weakest light, the highest bias and the temperature; empty: nothing is read.

    Args:
        gauges: canonical gauge, lanes as ``rx_power/0``, → value in W, A or °C.
    """
    words = []
    for name, text, scale, unit in (
        ("rx_power", "rx power", 1e3, "mW"),
        ("tx_power", "tx power", 1e3, "mW"),
        ("tx_bias", "bias", 1e3, "mA"),
        ("module_temperature", "temperature", 1.0, "°C"),
    ):
        lanes = [v for key, v in gauges.items() if key.split("/")[0] == name]
        if lanes:
            worst = min(lanes) if name.endswith("power") else max(lanes)
            words.append(f"{text} {worst * scale:.3g} {unit}")
    return ", ".join(words)
