"""A machine whose kernel died of a fault of the emulator is started again."""

import pytest

from lab.vm import image
from lab.vm.machine import EMULATORS_FAULT, Vm
from lab.vm.wire import VmError


class Dying(Vm):
    """Its power fails while it boots, so many times; the console says why."""

    deaths = 0
    says = EMULATORS_FAULT

    def _power_on(self):
        super()._power_on()
        if self.deaths:
            self.deaths -= 1
            self._process.kill()
            self._process.wait()
        return self

    def console(self, lines=80):
        return self.says


def test_a_kernel_that_dies_of_the_emulators_fault_is_started_again():
    machine = Dying("boot-again", image.base())
    machine.deaths = 1
    with machine as vm:
        vm.wait_booted()
        vm.run("true").check()


def test_one_that_dies_of_anything_else_is_not():
    machine = Dying("boot-never", image.base())
    machine.deaths, machine.says = 1, "Kernel panic - not syncing: VFS: Unable to mount root fs"
    with machine as vm, pytest.raises(VmError, match="VFS"):
        vm.wait_booted()
    assert machine.deaths == 0
