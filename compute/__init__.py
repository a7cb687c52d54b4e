"""fabric-compute: decides over lost hosts, on one or two management hosts.

- ``config``: ``/etc/fabricd/compute.toml``.
- ``decide``: the decision core. Pure.
- ``inbox``: messages of the broker become the newest state of each host, or are refused.
- ``service``: the event loop: broker, decisions, orders.
- ``engines``: who carries out what was decided.
- ``store``: what survives ``kill -9``: fences, records, pending commands.
- ``ledger``: the hash chain of records, its signed heads, and their verification.
- ``slo``: how many failures cost no progress, with a confidence bound.
- ``metrics``: what Prometheus reads.
- ``mosquitto``, ``certificates``: a hardened broker for a site that has none.

It meets fabricd in messages only, and imports ``telemetry`` and the pure parts of ``fabric_train``.
"""
