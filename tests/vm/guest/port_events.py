"""Print the async events of one verbs device as JSON lines, for ever.

First ``{"ready": true}`` once listening, then ``{"event", "t_ns"}`` with CLOCK_MONOTONIC. One
process per device: pyverbs waits for an event with the interpreter lock held.
"""

import json
import sys
import time

from pyverbs.device import Context

with Context(name=sys.argv[1]) as context:
    print(json.dumps({"ready": True}), flush=True)
    while True:
        event = context.get_async_event()
        print(json.dumps({"event": int(event.event_type), "t_ns": time.monotonic_ns()}), flush=True)
        event.ack()
