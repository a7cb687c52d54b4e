"""Long JSON values as short texts: zlib in base64. Pure, standard library only.

A generation of 2,000 hosts with 8 ranks each is 1.2 MB of JSON, and 0.2 MB packed. Most of it are
repeated names, and each host of the job has it in its document.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib

MOST_BYTES = 4 << 20
"""Of JSON, in one packed value."""
MOST_RATIO = 64
"""JSON to packed text. A generation is packed 2 to 10 times shorter: more is made to be long."""


def pack(text: str) -> str:
    """Packs a JSON text."""
    return base64.b64encode(zlib.compress(text.encode())).decode()


def unpack(packed: str) -> object:
    """The JSON value of ``pack``'s text. Raises ``ValueError``, also when it is over the limit."""
    most = min(MOST_BYTES, MOST_RATIO * len(packed))
    try:
        compressed = base64.b64decode(packed, validate=True)
        inflater = zlib.decompressobj()
        content = inflater.decompress(compressed, most or 1)
    except (binascii.Error, UnicodeEncodeError, zlib.error) as error:
        raise ValueError(f"not packed JSON: {error}") from None
    if inflater.unconsumed_tail:
        raise ValueError(f"over {most} bytes of JSON")
    if not inflater.eof or inflater.unused_data:
        raise ValueError("not packed JSON: its length is wrong")
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    return value
