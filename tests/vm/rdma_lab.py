"""What the tests of RDMA labs share."""

import time

PATIENCE_S = 240


def until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.1)
    return value


def clean(lab, known="no report is known"):
    """A fixture's body: the lab, and afterwards no report of a kernel fault in it.

    ``known`` is a part of reports that the test's fault provokes in this kernel.
    """
    lab.kernel_faults()
    yield lab
    assert lab.in_force == []
    found = [line for line in lab.kernel_faults() if known not in line]
    assert not found, "\n".join(found)


def ping(lab, source, target, rail):
    """Whether an ICMP echo comes back over a rail."""
    words = ["busybox", "ping", "-c2", "-W2", "-I", f"rail{rail}"]
    return lab.run(source, [*words, lab.topology.address4(target, rail)]).rc == 0


def pingpongs(lab, flows):
    """Results of (client, server) of ``ibv_rc_pingpong``, all (client, server, rail) at once."""

    def argv(rail, port):
        words = ["ibv_rc_pingpong", "-d", f"rxe{rail}", "-g", "1", "-n", "20", "-c", "-e"]
        return [*words, "-s", "2048", "-p", str(port)]

    ports = [lab.next_port() for _ in flows]
    servers = [
        lab.popen(server, argv(rail, port))
        for (_, server, rail), port in zip(flows, ports, strict=True)
    ]
    for (_, host, _), port, server in zip(flows, ports, servers, strict=True):
        lab.wait_listening(host, port, server)
    clients = [
        lab.popen(client, [*argv(rail, port), lab.topology.management4(server)])
        for (client, server, rail), port in zip(flows, ports, strict=True)
    ]
    return [(c.wait(), s.wait()) for c, s in zip(clients, servers, strict=True)]
