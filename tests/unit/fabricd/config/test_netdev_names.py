"""Altnames of devices: a link goes by the kernel's name, and a device is one link."""

import pytest

from fabricd.config import loader
from fabricd.config.loader import ConfigError, read
from fabricd.config.netdev_names import kernel_name

LINKS = """\
[host]
name = "h0"
[[links]]
netdev = "enp5s0"
rail = 0
address = "fe80::1:1%enp5s0"
[[links]]
netdev = "{second}"
rail = 1
address = "10.1.0.1"
"""


@pytest.fixture
def altnames(monkeypatch):
    names = {"enp5s0": "eth3"}
    monkeypatch.setattr(loader, "kernel_name", lambda name: names.get(name, name))


def written(tmp_path, second):
    main = tmp_path / "fabricd.toml"
    main.write_text(LINKS.format(second=second))
    return main


@pytest.mark.usefixtures("altnames")
def test_a_link_takes_the_kernels_name(tmp_path):
    loaded = read(written(tmp_path, "eth4"))
    assert [link.netdev for link in loaded.config.links] == ["eth3", "eth4"]
    assert str(loaded.config.links[0].address) == "fe80::1:1", "the zone is as written"
    assert loaded.altnames == (("enp5s0", "eth3"),)


@pytest.mark.usefixtures("altnames")
def test_two_names_of_one_device_are_one_too_many(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(written(tmp_path, "eth3"))
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (8, "links[1].netdev")
    assert problem.text == (
        "eth3 and links[0].netdev (enp5s0) are one device, eth3; allowed: each netdev once"
    )


def test_a_device_that_is_not_here_keeps_its_name(tmp_path):
    loaded = read(written(tmp_path, "nosuchdevice"))
    assert [link.netdev for link in loaded.config.links] == ["enp5s0", "nosuchdevice"]
    assert kernel_name("nosuchdevice") == "nosuchdevice"
    assert kernel_name("lo") == "lo"
