"""Shards that no replica holds: other ranks keep a base copy of them and the gradients since.

- ``units``: the shards of a process, each with what an optimizer keeps for it.
- ``log``: what a buddy keeps of one rank; ``entry``: what it gets with each step.
- ``exchange``: ranks give each other their entries, before they vote on the step.
- ``replay``: a replacement runs the optimizer over the gradients. ``proof``: that this is exact.
- ``keeper``: all of that, of one rank.

Called by ``rank``, on the training thread.
"""
