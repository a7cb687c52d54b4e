"""Messages of a host with a certificate of its own, whatever their data are."""

import json


def payload(topic, data, life="i"):
    """The bytes of a message; ``data``: JSON. ``life``: the sender's incarnation."""
    head = {
        "specversion": "1.0", "id": f"/host/h1/{life}/1", "source": "/host/h1",
        "type": topic.kind.message_type, "time": "2026-01-01T00:00:00+00:00", "bootid": "b",
        "incarnation": life, "sequence": 1,
    }  # fmt: skip
    return (json.dumps(head)[:-1] + f', "data": {data}}}').encode()
