"""A child process: what libibverbs says that sysfs does not. Prints one JSON object.

``python -m fabricd.doctor.verbs_query`` prints ``library`` (its file, empty without one),
``error``, and ``devices``: device → port number → ``active_mtu``, ``max_mtu`` in bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from typing import Any

_NAMES = ("libibverbs.so.1", "libibverbs.so")
_PORTS = 16
_ATTRIBUTES = 256
"""Bytes kept for struct ibv_port_attr, which takes 52 to 56."""


def mtu_bytes(code: int) -> int:
    """Bytes of an enum ibv_mtu; 0 for what is none."""
    return 128 << code if 1 <= code <= 5 else 0


def main() -> int:
    """Print what there is; the exit status is 0 also without the library."""
    answer: dict[str, Any] = {"library": "", "error": "", "devices": {}}
    try:
        library, answer["library"] = _load()
        answer["devices"] = _devices(library)
    except OSError as error:
        answer["error"] = str(error)
    json.dump(answer, sys.stdout)
    return 0


def _load() -> tuple[ctypes.CDLL, str]:
    problem: OSError = OSError("libibverbs is not installed")
    for name in _NAMES:
        try:
            return ctypes.CDLL(name, use_errno=True), name
        except OSError as error:
            problem = error
    raise problem


def _devices(library: ctypes.CDLL) -> dict[str, dict[str, dict[str, int]]]:
    library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    library.ibv_get_device_name.restype = ctypes.c_char_p
    library.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    library.ibv_open_device.restype = ctypes.c_void_p
    library.ibv_open_device.argtypes = [ctypes.c_void_p]
    library.ibv_close_device.argtypes = [ctypes.c_void_p]
    library.ibv_query_port.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p]
    count = ctypes.c_int()
    listed = library.ibv_get_device_list(ctypes.byref(count))
    if not listed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    found: dict[str, dict[str, dict[str, int]]] = {}
    for index in range(count.value):
        name = library.ibv_get_device_name(listed[index]).decode("ascii", "replace")
        context = library.ibv_open_device(listed[index])
        if not context:
            continue
        with contextlib.ExitStack() as opened:
            opened.callback(library.ibv_close_device, context)
            found[name] = _ports(library, context)
    return found


def _ports(library: ctypes.CDLL, context: int) -> dict[str, dict[str, int]]:
    found = {}
    for number in range(1, _PORTS + 1):
        attributes = (ctypes.c_uint32 * (_ATTRIBUTES // 4))()
        if library.ibv_query_port(context, number, attributes):
            break
        # struct ibv_port_attr begins with the enums state, max_mtu and active_mtu.
        found[str(number)] = {
            "max_mtu": mtu_bytes(attributes[1]),
            "active_mtu": mtu_bytes(attributes[2]),
        }
    return found


if __name__ == "__main__":
    sys.exit(main())
