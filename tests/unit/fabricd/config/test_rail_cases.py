"""The cases of rail_cases.json: the same rules decide rails in daemon, prober and plugin.

The plugin's test is nccl_plugin/tests/rail_cases_test.cpp, that of the prober is
prober/tests/config_test.cpp.
"""

import json
from pathlib import Path

import pytest

from fabricd.config.loader import ConfigError, parse
from fabricd.doctor.checks.nccl_names import NameList
from fabricd.links import address_choice
from fabricd.links.address_choice import DeviceAddress, choose_address

CASES = json.loads((Path(__file__).parents[2] / "shared" / "rail_cases.json").read_text())
SCOPES = {"": 0, "link": address_choice.RT_SCOPE_LINK, "host": 254}


def config(netdev="rail0", own="10.0.0.1", peer=""):
    quoted = json.dumps(netdev)
    listed = f'[[peers]]\nhost = "h1"\naddresses = [{{ rail = 0, address = "{peer}" }}]\n'
    return parse(
        f'[host]\nname = "h0"\n[[links]]\nnetdev = {quoted}\nrail = 0\naddress = "{own}"\n'
        + (listed if peer else ""),
        "f.toml",
    )


def refused(key, **values):
    with pytest.raises(ConfigError) as caught:
        config(**values)
    texts = [problem.text for problem in caught.value.problems if problem.key == key]
    assert texts
    assert all("allowed: " in text for text in texts)


@pytest.mark.parametrize("case", CASES["names"], ids=lambda case: repr(case["name"]))
def test_names(case):
    if case["valid"]:
        assert config(netdev=case["name"]).links[0].netdev == case["name"]
    else:
        refused("links[0].netdev", netdev=case["name"])


@pytest.mark.parametrize("case", CASES["addresses"], ids=lambda c: f"{c['as']}-{c['text']}")
def test_addresses(case):
    peer = case["as"] == "peer"
    text = case["text"]
    given = {"own": case.get("of", "10.0.0.1"), "peer": text} if peer else {"own": text}
    if not case["valid"]:
        refused("peers[0].addresses[0].address" if peer else "links[0].address", **given)
        return
    made = config(**given)
    address = made.peers[0].addresses[0].address if peer else made.links[0].address
    assert str(address) == case.get("is", text)


@pytest.mark.parametrize("case", CASES["choices"], ids=lambda case: case["what"])
def test_choices(case):
    addresses = [
        DeviceAddress(
            each["ip"],
            sum(getattr(address_choice, f"IFA_F_{x.upper()}") for x in each.get("flags", ())),
            SCOPES[each.get("scope", "")],
        )
        for each in case["addresses"]
    ]
    choice = choose_address(
        addresses,
        version=case.get("family"),
        asked=case.get("asked", False),
        current=case.get("current"),
    )
    assert (choice.address, choice.note) == (case.get("want"), case.get("note", ""))


@pytest.mark.parametrize("case", CASES["filters"], ids=lambda case: case["list"])
def test_lists_of_names_as_the_doctor_reads_them(case):
    names = NameList.parse(case["list"])
    if names.items:
        assert all(names.selects(name) for name in case["names"])
        assert not any(names.selects(name) for name in case["not"])
