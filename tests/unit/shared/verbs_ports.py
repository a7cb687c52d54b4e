"""Verbs ports whose driver hangs when a test says so."""

import threading


class Ports:
    """Stands for IbPorts; ``gate`` closed: its driver hangs."""

    def __init__(self, netdevs=("rail0",)):
        self.netdevs = list(netdevs)
        self.note, self.ports = "rail0=mlx5_0/1", {}
        self.gate = threading.Event()
        self.gate.set()
        self.reads = 0
        self.incomplete = False

    def changed(self, netdevs, _named):
        return list(netdevs) != self.netdevs

    def read(self):
        self.reads += 1
        self.gate.wait(60)
        return dict.fromkeys(self.netdevs, True)
