"""Which backend, and where its libraries are found."""

import pytest

from fabric_train.groups.backend import BackendError, chosen, environment
from fabric_train.groups.plugin_library import (
    LibraryMissingError,
    find_collectives,
    find_plugin,
    load_library,
)


@pytest.fixture
def installed(tmp_path):
    """A directory with both libraries, by name."""
    for name in ("libnccl-net-fabric.so", "libfabric-collectives.so"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def test_gloo_is_the_default_and_needs_nothing():
    assert chosen({}) == chosen({"FABRIC_TRAIN_BACKEND": ""}) == "gloo"
    assert environment(None, {}, standalone=True) == {"FABRIC_TRAIN_BACKEND": "gloo"}


def test_an_unknown_backend_is_named():
    with pytest.raises(BackendError, match=r"FABRIC_TRAIN_BACKEND=mpi: .* gloo, plugin"):
        environment(None, {"FABRIC_TRAIN_BACKEND": "mpi"}, standalone=True)


def test_nccl_leaves_lost_peers_to_us_unless_told_otherwise():
    added = environment("nccl", {"TORCH_NCCL_ENABLE_MONITORING": "1"}, standalone=True)
    assert added["FABRIC_TRAIN_BACKEND"] == "nccl"
    assert added["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert added["NCCL_NET_PLUGIN_REF_COUNT"] == "1"
    assert "TORCH_NCCL_ENABLE_MONITORING" not in added


def test_the_command_line_wins_over_the_environment(installed):
    inherited = {"FABRIC_TRAIN_BACKEND": "mpi", "LD_LIBRARY_PATH": str(installed)}
    added = environment("plugin", inherited, standalone=False)
    assert added == {"FABRIC_TRAIN_BACKEND": "plugin"}


@pytest.mark.parametrize(("named", "used"), [("", "lo"), ("eth2", "eth2")])
def test_ranks_of_one_machine_use_loopback_unless_told_otherwise(installed, named, used):
    inherited = {"LD_LIBRARY_PATH": str(installed), "NCCL_SOCKET_IFNAME": named}
    assert (inherited | environment("plugin", inherited, standalone=True))[
        "NCCL_SOCKET_IFNAME"
    ] == used


def test_a_plugin_is_found_as_nccl_finds_it(installed):
    library = installed / "libnccl-net-fabric.so"
    search = {"LD_LIBRARY_PATH": f":/nonexistent:{installed}"}
    for name in ("", "fabric", "libnccl-net-fabric.so"):
        assert find_plugin({**search, "NCCL_NET_PLUGIN": name}) == library
    assert find_plugin({"NCCL_NET_PLUGIN": str(library)}) == library


def test_a_plugin_that_is_missing_says_where_it_was_looked_for(installed):
    with pytest.raises(LibraryMissingError, match=r"NCCL_NET_PLUGIN=/nowhere/x\.so"):
        find_plugin({"NCCL_NET_PLUGIN": "/nowhere/x.so"})
    with pytest.raises(LibraryMissingError, match=f"{installed}/libnccl-net-other.so"):
        find_plugin({"LD_LIBRARY_PATH": str(installed), "NCCL_NET_PLUGIN": "other"})


def test_the_collectives_lie_beside_the_plugin_unless_they_are_named(installed, tmp_path):
    plugin = installed / "libnccl-net-fabric.so"
    assert find_collectives({}, plugin) == installed / "libfabric-collectives.so"
    with pytest.raises(BackendError, match="FABRIC_COLLECTIVES=/nowhere"):
        environment(
            "plugin", {"FABRIC_COLLECTIVES": "/nowhere", "NCCL_NET_PLUGIN": str(plugin)},
            standalone=True,
        )  # fmt: skip


def test_a_file_that_is_no_library_of_collectives_is_refused(installed):
    with pytest.raises(LibraryMissingError, match="is no library of collectives"):
        load_library(installed / "libfabric-collectives.so")
    with pytest.raises(LibraryMissingError, match="is no library of collectives"):
        load_library("libc.so.6")
