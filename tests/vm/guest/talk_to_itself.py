"""Loads the plugin and sends messages to itself over loopback, by NCCL's table of version 8.

``talk_to_itself.py LIBRARY`` prints the glibc that it ran with. For any Python 3.6 or newer: it
runs in userlands of training containers.
"""

import ctypes
import platform
import sys
import time

NAMES = [
    *("init", "devices", "get_properties", "listen", "connect", "accept"),
    *("register_memory", "register_dmabuf", "deregister_memory", "isend", "irecv", "iflush"),
    *("test", "close_send", "close_receive", "close_listen"),
]
HANDLE_SIZE = 128
SIZES = (0, 8, 8192, 1 << 20, 16 << 20)
PATIENCE_S = 60


class Table(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p)] + [(name, ctypes.c_void_p) for name in NAMES]


Log = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p,
    ctypes.c_char_p,
)  # fmt: skip


@Log
def log(level, _subsystems, _file, _line, _format, text):
    print(level, (text or b"").decode(errors="replace"), flush=True)


class Net:
    """Calls of the table by their names; all but success is an error."""

    def __init__(self, path):
        self._table = Table.in_dll(ctypes.CDLL(path), "ncclNetPlugin_v8")

    def __getattr__(self, name):
        call = ctypes.CFUNCTYPE(ctypes.c_int)(getattr(self._table, name))

        def checked(*args):
            status = call(*args)
            assert status == 0, f"{name} said {status}"

        return checked


def until(what, step):
    """What ``step`` gives as soon as it gives something."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        got = step()
        if got:
            return got
        time.sleep(0.0002)
    raise AssertionError(what + " does not come")


def pointer_from(call, *args):
    def step():
        out = ctypes.c_void_p()
        call(*args, ctypes.byref(out), None)
        return out.value

    return step


def done(net, request):
    def step():
        flag, sizes = ctypes.c_int(), (ctypes.c_int * 8)()
        net.test(ctypes.c_void_p(request), ctypes.byref(flag), sizes)
        return (sizes[0],) if flag.value else None

    return step


def send(net, sender, data, tag):
    def step():
        request = ctypes.c_void_p()
        net.isend(sender, data, len(data), tag, None, ctypes.byref(request))
        return request.value

    return step


def receive(net, receiver, buffer, tag):
    def step():
        request = ctypes.c_void_p()
        buffers = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
        sizes, tags = (ctypes.c_int * 1)(len(buffer)), (ctypes.c_int * 1)(tag)
        net.irecv(receiver, 1, buffers, sizes, tags, None, ctypes.byref(request))
        return request.value

    return step


def main():
    net = Net(sys.argv[1])
    net.init(log)
    count = ctypes.c_int()
    net.devices(ctypes.byref(count))
    assert count.value == 1, f"{count.value} devices"
    handle, listener = ctypes.create_string_buffer(HANDLE_SIZE), ctypes.c_void_p()
    net.listen(0, handle, ctypes.byref(listener))
    connect = pointer_from(net.connect, 0, handle)
    accept = pointer_from(net.accept, listener)
    ends = {}

    def both():
        for name, step in (("send", connect), ("receive", accept)):
            if not ends.get(name):
                ends[name] = step()
        return all(ends.values())

    until("the connection", both)
    sender, receiver = ctypes.c_void_p(ends["send"]), ctypes.c_void_p(ends["receive"])
    for tag, size in enumerate(SIZES):
        data = bytes((i * 7 + tag) % 251 for i in range(251)) * (size // 251 + 1)
        data = data[:size]
        buffer = (ctypes.c_char * (size + 1))()
        incoming = until("a receive", receive(net, receiver, buffer, tag))
        outgoing = until("a send", send(net, sender, data, tag))
        assert until("the receive's end", done(net, incoming)) == (size,)
        until("the send's end", done(net, outgoing))
        assert buffer.raw[:size] == data, f"wrong bytes of {size}"
    net.close_send(sender)
    net.close_receive(receiver)
    net.close_listen(listener)
    print("done with", *platform.libc_ver())


main()
