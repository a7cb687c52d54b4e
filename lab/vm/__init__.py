"""Virtual machines with a stock Debian kernel: soft-RoCE, real verbs, a real systemd.

`image` builds the system once, `kernel` has a newer kernel, `payload` the installed product.
`machine` boots, drives and ends a machine, over the agent and monitor of `wire`; `initramfs` starts
it, `apt` and `cache` fetch and keep. `pair` wires two of them, and `rdma` is an RDMA cluster in
them. Tests of ``tests/vm`` and ``./run lab vm`` call it.

QEMU runs under TCG (pure emulation), so no ``/dev/kvm`` is needed and everything inside is 10 to 30
times slower than outside.
"""
