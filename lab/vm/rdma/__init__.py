"""An RDMA cluster in virtual machines: hosts × rails, each rail with a soft-RoCE device.

Two kinds with one interface (`lab.vm.rdma.lab.GuestLab`): ``namespaces`` puts all hosts into one
machine with a newer kernel, ``pair`` takes two machines with Debian's own. ``faults`` break them,
``perftest`` and ``perf`` load them, ``owner`` and ``client`` keep one for ``./run lab vm``.
"""
