"""Set a link down and up: ``flap.py LINK DOWN_MS UP_MS COUNT``; standard library only.

Prints CLOCK_MONOTONIC in ns before the first down and after the last up. Link flags by ioctl
(netdevice(7)): a process for each change would take longer than a short flap.
"""

import fcntl
import socket
import struct
import sys
import time

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

name, down_ms, up_ms, count = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
request = struct.pack("16sH22x", name.encode(), 0)
flags = struct.unpack("16sH22x", fcntl.ioctl(sock, SIOCGIFFLAGS, request))[1]


def put(value: int) -> None:
    """Set the link's flags."""
    fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), value))


first = last = time.monotonic_ns()
for _ in range(count):
    put(flags & ~IFF_UP)
    time.sleep(down_ms / 1000)
    put(flags | IFF_UP)
    last = time.monotonic_ns()
    time.sleep(up_ms / 1000)
print(first, last)
