"""The state of a rank: what a replacement receives, and what a checkpoint keeps.

- ``replicated``: models and optimizers, as one flat list; ``transfer`` moves it between ranks.
- ``replicas``: which ranks hold the same shards.
- ``rank_local``: random generators and the position in the data, which no replica has.
- ``step_start``, ``later_part``: what an attempt may change, and the part that moves meanwhile.
- ``sharded``, ``unprotected``: state that a replacement would not get, found at the job's start.
- ``checkpoint``: files that no outdated writer can publish.

Called by ``rank``; ``checkpoint`` also by training scripts. A state is applied whole or not at all:
each part is checked by its checksum first.
"""
