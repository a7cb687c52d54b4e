"""What runs in a process of a job: a rank, or a spare that waits for a rank.

- ``job``: the API of a training loop, ``joining``: its beginning; ``launched``: how a process knows
  its fabric-run; ``waiting``: for a rank.
- ``recovery``: what the ranks of a new generation give each other. ``after_recovery``:
  what is left for the next step. ``preparation``: a planned move.
- ``hand_over``: rank-local state goes to the agent before the vote on a step.
- ``progress``, ``ending``: what the agent is told. ``guard``: who may publish a checkpoint.
- ``heartbeat``: that its interpreter runs. ``torchrun``: torchrun's names. ``compiled``: what
  ``torch.compile`` may not touch.
- ``own_time``, ``device_time``: how long a rank works by itself.

Called by training scripts through ``fabric_train.join``. The training thread owns all state; the
link's thread only leaves it news.
"""
