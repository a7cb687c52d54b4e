"""Virtual machines with a stock Debian kernel: soft-RoCE, real verbs, a real systemd.

QEMU runs under TCG (pure emulation), so no ``/dev/kvm`` is needed and everything inside is 10 to 30
times slower than outside. ``image`` builds the system once, ``payload`` the installed product,
``machine`` boots, drives and ends a machine, ``pair`` wires two of them.
"""
