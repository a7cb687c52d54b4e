"""Shards that no replica holds: other ranks keep copies of them, or copies and gradients.

- ``units``: the shards of a process, each with what an optimizer keeps for it.
- ``keeper``: what one rank gives and keeps. ``entry``: what a buddy gets with each step.
- ``exchange``: ranks give each other their entries, before they vote on the step.
- ``gradient_keeper``, ``log``: a base copy, and the gradients since.
- ``replay``: a replacement runs the optimizer over the gradients. ``proof``: that this is exact.
- ``whole``: a copy with each step, where that cannot be. ``own_copy``: to go back to.

Called by ``rank``, on the training thread.
"""
