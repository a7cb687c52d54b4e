"""The demo's second act: a job trains over the plugin while a NIC, a rank and a host are lost.

- ``loop``: the training script. ``act``: lab, job and what is done to them.
- ``sources``: what fabric-compute and the ranks say. ``story``: the strikes, and what came of each.
- ``shards``: a second job, whose ranks have shards. One of them is killed.
- ``view``: the live view. ``report``: the tables and the HTML report.
"""
