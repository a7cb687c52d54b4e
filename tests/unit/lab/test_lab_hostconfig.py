"""fabricd.toml of a lab's host."""

import tomllib
from pathlib import Path

import pytest

from lab.services.host_config import host_config, merge, to_toml
from lab.topology import Topology


def config(topology: Topology, host: int, **overrides):
    tree = host_config(
        topology,
        host,
        run_dir=Path("/r"),
        state_dir=Path("/s"),
        stop_file=Path("/x/STOP"),
        key_file=Path("/k"),
        overrides=overrides,
    )
    return tomllib.loads(to_toml(tree))


def test_all_other_hosts_are_peers():
    got = config(Topology(hosts=3, rails=2), 1)
    assert got["host"]["name"] == "h1"
    assert got["paths"] == {"run_dir": "/r", "state_dir": "/s", "stop_file": "/x/STOP"}
    assert got["links"] == [
        {"netdev": "rail0", "rail": 0, "address": "10.0.0.2"},
        {"netdev": "rail1", "rail": 1, "address": "10.1.0.2"},
    ]
    assert [p["host"] for p in got["peers"]] == ["h0", "h2"]
    assert got["peers"][1]["addresses"] == [
        {"rail": 0, "address": "10.0.0.3"},
        {"rail": 1, "address": "10.1.0.3"},
    ]


def test_overrides_merge_into_tables():
    got = config(
        Topology(hosts=2, rails=1), 0, probe={"misses": 5}, hold={"hold_down_s": 0.5}, damping={}
    )
    assert got["probe"] == {"key_file": "/k", "misses": 5}
    assert got["hold"] == {"hold_down_s": 0.5}


def test_no_cross_rail_probes_without_spines():
    assert config(Topology(spines=0), 0)["probe"]["cross_rail_peers"] == 0


def test_values_survive_toml():
    tree = {"a": {"s": 'q"\\', "b": True, "f": 1.5, "l": [1, 2], "t": [{"x": 1}, {"y": "z"}]}}
    assert tomllib.loads(to_toml(tree))["a"]["s"] == 'q"\\'
    assert tomllib.loads(to_toml({"a": {"l": [{"x": 1}]}})) == {"a": {"l": [{"x": 1}]}}
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {
        "a": {"b": 3, "c": 2},
        "d": 4,
    }
    with pytest.raises(TypeError):
        to_toml({"a": {"b": object()}})
