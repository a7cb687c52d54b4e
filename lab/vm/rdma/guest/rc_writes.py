"""RDMA writes over one reliable connection until an error or the end of time; uses pyverbs.

``rc_writes.py target DEVICE PORT`` waits on TCP port PORT for its source.
``rc_writes.py source DEVICE PORT SERVER SECONDS SIZE TIMEOUT RETRIES STARTED`` writes one message
at a time and creates the file STARTED after the first one. TIMEOUT and RETRIES are those of the
queue pair. Both print one JSON object at the end; times are CLOCK_MONOTONIC in ns.
"""

import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

GID_INDEX, RAIL_PORT, BUFFER = 1, 1, 1 << 20
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
POLL_S = 0.0005
GOODBYE_S = 20

role, device, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
context = Context(name=device)
domain, queue = PD(context), CQ(context, 16)
memory = MR(domain, BUFFER, ACCESS)
cap = QPCap(max_send_wr=4, max_recv_wr=1)
pair = QP(domain, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=queue, rcq=queue, cap=cap))
own = {
    "qpn": pair.qp_num,
    "gid": str(context.query_gid(RAIL_PORT, GID_INDEX)),
    "rkey": memory.rkey,
    "address": memory.buf,
}


def swap(sock: socket.socket) -> tuple[dict[str, Any], Iterator[str]]:
    """Tell the other side our terms; its terms, and the lines that it sends afterwards."""
    sock.sendall(json.dumps(own).encode() + b"\n")
    lines = iter(sock.makefile())
    return json.loads(next(lines)), lines


def connect(peer: dict[str, Any], timeout: int, retries: int) -> None:
    """Bring the queue pair to RTS."""
    attr = QPAttr(port_num=RAIL_PORT)
    attr.qp_access_flags = ACCESS
    attr.path_mtu = e.IBV_MTU_1024
    attr.dest_qp_num = peer["qpn"]
    attr.min_rnr_timer = 12
    attr.timeout, attr.retry_cnt, attr.rnr_retry = timeout, retries, 7
    route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=GID_INDEX)
    attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=RAIL_PORT)
    pair.to_rts(attr)


def one_write(peer: dict[str, Any], number: int, size: int) -> int:
    """Write ``size`` bytes; the status of the completion."""
    memory.write(number.to_bytes(8, "little"), 8)
    request = SendWR(
        wr_id=number,
        opcode=e.IBV_WR_RDMA_WRITE,
        num_sge=1,
        sg=[SGE(memory.buf, size, memory.lkey)],
        send_flags=e.IBV_SEND_SIGNALED,
    )
    request.set_wr_rdma(peer["rkey"], peer["address"])
    pair.post_send(request)
    while True:
        count, completions = queue.poll(1)
        if count:
            return int(completions[0].status)
        time.sleep(POLL_S)


def source() -> dict[str, Any]:
    """Write until the first bad completion or the end of time."""
    server, seconds, size = sys.argv[4], float(sys.argv[5]), int(sys.argv[6])
    timeout, retries, started = int(sys.argv[7]), int(sys.argv[8]), Path(sys.argv[9])
    with socket.create_connection((server, port), 60) as sock:
        peer, lines = swap(sock)
        connect(peer, timeout, retries)
        next(lines)
        writes, status, longest = 0, 0, 0
        begin = last = time.monotonic_ns()
        while last < begin + seconds * 1e9 and status == 0:
            status = one_write(peer, writes + 1, size)
            now = time.monotonic_ns()
            longest, last = max(longest, now - last), now
            if status == 0:
                writes += 1
            if writes == 1:
                started.parent.mkdir(parents=True, exist_ok=True)
                started.touch()
        # A target that has lost its power says no more.
        sock.settimeout(GOODBYE_S)
        with contextlib.suppress(OSError, StopIteration):
            sock.sendall(b"done\n")
            next(lines)
    return {
        "writes": writes,
        "status": status,
        "begin_ns": begin,
        "end_ns": last,
        "longest_gap_ns": longest,
    }


def target() -> dict[str, Any]:
    """Offer memory until the source has finished."""
    with socket.create_server(("", port)) as listener:
        sock, _ = listener.accept()
    with sock:
        peer, lines = swap(sock)
        connect(peer, 14, 7)
        sock.sendall(b"ready\n")
        next(lines)
        attr, _ = pair.query(e.IBV_QP_STATE)
        sock.sendall(b"done\n")
    landed = int.from_bytes(memory.read(8, 0), "little")
    return {"landed": landed, "state": int(attr.qp_state)}


print(json.dumps({"source": source, "target": target}[role]()))
