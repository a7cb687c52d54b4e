"""Which verbs port is asked for a link: sysfs trees as kernels show them."""

import pytest

from fabricd.links.ibports import IbPorts, Port, any_active, ports_of

DOWN, INIT, ACTIVE = 1, 2, 4  # enum ibv_port_state


def gid(sysfs, device, port, index, netdev):
    path = sysfs / "infiniband" / device / "ports" / str(port) / "gid_attrs" / "ndevs" / str(index)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{netdev}\n")


def ipoib(sysfs, device, ports, netdev, dev_port):
    for port in range(1, ports + 1):
        (sysfs / "infiniband" / device / "ports" / str(port) / "gid_attrs" / "ndevs").mkdir(
            parents=True, exist_ok=True
        )
    net = sysfs / "net" / netdev
    (net / "device" / "infiniband" / device).mkdir(parents=True)
    (net / "dev_port").write_text(f"{dev_port}\n")


class Verbs:
    def __init__(self, *states):
        """(device, port, state) of each; a state of None: asking fails."""
        self.states = {Port(device, number): state for device, number, state in states}

    def devices(self):
        return [port.device for port in self.states]

    def port_state(self, port):
        state = self.states[port]
        if state is None:
            raise OSError("no such port")
        return state


def test_two_ports_of_one_device(tmp_path):
    gid(tmp_path, "mlx4_0", 1, 0, "eth0")
    gid(tmp_path, "mlx4_0", 2, 0, "eth1")
    made = IbPorts(
        ["eth0", "eth1"], verbs=Verbs(("mlx4_0", 1, DOWN), ("mlx4_0", 2, ACTIVE)), sysfs=tmp_path
    )
    assert made.note == "eth0=mlx4_0/1, eth1=mlx4_0/2"
    assert made.read() == {"eth0": False, "eth1": True}


def test_vlan_and_unset_entries_of_the_gid_table(tmp_path):
    gid(tmp_path, "rocep1", 1, 0, "eth0")
    gid(tmp_path, "rocep1", 1, 3, "eth0.7")
    table = tmp_path / "infiniband" / "rocep1" / "ports" / "1" / "gid_attrs" / "ndevs"
    (table / "4").mkdir()  # cannot be read, as an entry without a GID
    (table / "5").write_text("")
    assert ports_of(["eth0.7", "eth9"], ["rocep1"], sysfs=tmp_path) == {
        "eth0.7": (Port("rocep1", 1),)
    }


def test_ipoib_by_the_interface(tmp_path):
    ipoib(tmp_path, "mthca0", 2, "ib1", 1)
    made = IbPorts(["ib1"], verbs=Verbs(("mthca0", 1, ACTIVE), ("mthca0", 2, INIT)), sysfs=tmp_path)
    assert made.note == "ib1=mthca0/2"
    assert made.active("ib1") is False


def test_a_device_that_the_configuration_names(tmp_path):
    """EFA's port names no interface, and is no child of one."""
    gid(tmp_path, "rdmap16s27", 1, 0, "")
    gid(tmp_path, "mlx5_0", 1, 0, "ens33")
    verbs = Verbs(("rdmap16s27", 1, ACTIVE), ("mlx5_0", 1, DOWN))
    named = {"ens32": "rdmap16s27", "ens33": "nosuch"}
    made = IbPorts(["ens32", "ens33"], named, verbs=verbs, sysfs=tmp_path)
    assert made.note == "ens32=rdmap16s27/1", "and not another one than was named"
    assert made.active("ens32") is True
    assert not made.changed(["ens32", "ens33"], named)
    assert made.changed(["ens32", "ens33"], named | {"ens33": "mlx5_0"})
    assert made.changed(["ens32", "ens33"])


def test_of_a_named_device_with_two_ports_each_link_has_its_own(tmp_path):
    ipoib(tmp_path, "mlx4_0", 2, "ib0", 0)
    ipoib(tmp_path, "mlx4_0", 2, "ib1", 1)
    gid(tmp_path, "mlx4_1", 1, 0, "eth0")
    gid(tmp_path, "mlx4_1", 2, 0, "eth1")
    named = {"ib0": "mlx4_0", "ib1": "mlx4_0", "eth1": "mlx4_1", "eth7": "mlx4_1"}
    found = ports_of(list(named), ["mlx4_0", "mlx4_1"], sysfs=tmp_path, named=named)
    assert found["ib0"] == (Port("mlx4_0", 1),)
    assert found["ib1"] == (Port("mlx4_0", 2),)
    assert found["eth1"] == (Port("mlx4_1", 2),)
    assert found["eth7"] == (Port("mlx4_1", 1), Port("mlx4_1", 2)), "the system does not say which"


def pci(sysfs, kind, name, function):
    target = sysfs / "devices" / function
    target.mkdir(parents=True, exist_ok=True)
    (sysfs / kind / name).mkdir(parents=True, exist_ok=True)
    (sysfs / kind / name / "device").symlink_to(target)


def test_an_interface_of_that_name_in_another_namespace(tmp_path):
    """A GID table names interfaces of all namespaces: a pod's eth0 is not the host's."""
    gid(tmp_path, "mlx5_7", 1, 0, "eth0")
    pci(tmp_path, "infiniband", "mlx5_7", "0000:81:00.4")
    pci(tmp_path, "net", "eth0", "0000:01:00.0")
    assert ports_of(["eth0"], ["mlx5_7"], sysfs=tmp_path) == {}
    gid(tmp_path, "mlx5_0", 1, 0, "eth0")
    pci(tmp_path, "infiniband", "mlx5_0", "0000:01:00.0")
    devices = ["mlx5_0", "mlx5_7"]
    assert ports_of(["eth0"], devices, sysfs=tmp_path) == {"eth0": (Port("mlx5_0", 1),)}


@pytest.mark.parametrize("function", ["0000:01:00.1", "mlx5_core.sf.4"])
def test_a_port_of_another_function_of_the_slot_counts(tmp_path, function):
    gid(tmp_path, "mlx5_0", 2, 0, "eth1")
    pci(tmp_path, "infiniband", "mlx5_0", "0000:01:00.0")
    pci(tmp_path, "net", "eth1", function)
    assert ports_of(["eth1"], ["mlx5_0"], sysfs=tmp_path) == {"eth1": (Port("mlx5_0", 2),)}


def test_a_port_that_does_not_exist_is_none(tmp_path):
    ipoib(tmp_path, "mlx5_0", 1, "ib0", 3)
    assert ports_of(["ib0"], ["mlx5_0"], sysfs=tmp_path) == {}
    assert ports_of(["ib0"], [], sysfs=tmp_path) == {}


def test_several_ports_behind_one_interface(tmp_path):
    for device in ("mlx5_0", "rxe0"):
        gid(tmp_path, device, 1, 0, "eth0")
    made = IbPorts(["eth0"], verbs=Verbs(("mlx5_0", 1, DOWN), ("rxe0", 1, ACTIVE)), sysfs=tmp_path)
    assert made.note == "eth0=mlx5_0/1+rxe0/1"
    assert made.active("eth0") is True


@pytest.mark.parametrize(
    ("states", "answer"),
    [([], None), ([ACTIVE], True), ([INIT], False), ([None], None), ([DOWN, None], None),
     ([None, ACTIVE], True), ([DOWN, INIT], False)],
)  # fmt: skip
def test_only_what_is_known_is_said(states, answer):
    assert any_active({Port("d", i): s for i, s in enumerate(states)}) is answer


def test_a_device_that_cannot_be_asked_says_nothing(tmp_path):
    gid(tmp_path, "mlx5_0", 1, 0, "eth0")
    made = IbPorts(["eth0"], verbs=Verbs(("mlx5_0", 1, None)), sysfs=tmp_path)
    assert made.read() == {"eth0": None}
    assert made.active("eth1") is None
    assert "no verbs device" in IbPorts(["eth1"], verbs=Verbs(), sysfs=tmp_path).note


@pytest.mark.parametrize(("text", "active"), [
    ("4: ACTIVE\n", True), ("1: DOWN\n", False), ("nonsense\n", None), ("", None),
])  # fmt: skip
def test_without_pyverbs_sysfs_is_read(tmp_path, monkeypatch, text, active):
    def absent():
        raise ImportError("no module named pyverbs")

    monkeypatch.setattr("fabricd.links.ibports.PyVerbs", absent)
    gid(tmp_path, "mlx5_0", 1, 0, "eth0")
    state = tmp_path / "infiniband/mlx5_0/ports/1/state"
    state.write_text(text)
    made = IbPorts(["eth0"], sysfs=tmp_path)
    assert made.note == "eth0=mlx5_0/1"
    assert made.active("eth0") is active
    state.unlink()
    assert made.active("eth0") is None


def test_pyverbs_is_not_loaded_where_there_is_no_device(tmp_path, monkeypatch):
    monkeypatch.setattr("fabricd.links.ibports.PyVerbs", lambda: pytest.fail("loaded"))
    assert IbPorts(["eth0"], sysfs=tmp_path).note == "no verbs devices"
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    monkeypatch.setattr("fabricd.links.ibports.PyVerbs", Verbs)
    assert IbPorts(["eth0"], sysfs=tmp_path).note == "no verbs device behind the configured links"


def test_another_device_or_another_link_is_noticed(tmp_path):
    made = IbPorts(["eth0"], verbs=Verbs(), sysfs=tmp_path)
    assert not made.changed(["eth0"])
    assert made.changed(["eth0", "eth1"])
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert made.changed(["eth0"])
    assert not IbPorts(["eth0"], verbs=Verbs(), sysfs=tmp_path).changed(["eth0"])


def test_a_device_that_goes_while_it_is_looked_at_breaks_nothing(tmp_path, monkeypatch):
    def gone(*_, **__):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("fabricd.links.ibports.ports_of", gone)
    made = IbPorts(["eth0"], verbs=Verbs(("mlx5_0", 1, ACTIVE)), sysfs=tmp_path)
    assert made.note == "a verbs device went away meanwhile: No such file or directory"
    assert made.netdevs == []


def test_a_link_without_a_port_is_looked_up_again_while_there_are_devices(tmp_path):
    gid(tmp_path, "mlx5_0", 1, 0, "")  # no address yet: the table names nothing
    verbs = Verbs(("mlx5_0", 1, ACTIVE))
    early = IbPorts(["bond0"], verbs=verbs, sysfs=tmp_path)
    assert early.note == "no verbs device behind the configured links"
    assert early.incomplete
    assert not early.changed(["bond0"]), "the same devices and links"
    gid(tmp_path, "mlx5_0", 1, 0, "bond0")
    late = IbPorts(["bond0"], verbs=verbs, sysfs=tmp_path)
    assert late.read() == {"bond0": True}
    assert not late.incomplete
    assert not IbPorts(["bond0"], verbs=Verbs(), sysfs=tmp_path / "none").incomplete, "no devices"
