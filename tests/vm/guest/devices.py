"""Print what pyverbs knows of every device, as one JSON object by device name."""

import json

from pyverbs.device import Context, get_device_list

found = {}
for entry in get_device_list():
    name = entry.name.decode()
    with Context(name=name) as context:
        port = context.query_port(1)
        found[name] = {
            "state": int(port.state),
            "link_layer": int(port.link_layer),
            "active_mtu": int(port.active_mtu),
            "gids": [str(context.query_gid(1, i)) for i in range(2)],
        }
print(json.dumps(found))
