"""Who carries out what was decided.

- ``base``: the one interface of all engines.
- ``live``: orders to hosts over the broker. The engine of every fabric-compute.
- ``exec``: a command of the site, e.g. to cut a host's power or to cordon it.

An engine gets a decision after it was stored, and may get it again after a crash: it acts by the
whole present state (``live``), or by the id of the action (``exec``).
"""
