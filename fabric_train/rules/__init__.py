"""The rules of a job: who holds which rank, in which phase it is, at which step it goes on.

- ``membership``: which process holds which rank, a function of the live processes.
- ``coordinator``: the phases forming, running, recovering, held; events and the time go in.
- ``step_rule``: at which step a job continues after a loss, and who copies whose state.
- ``agreement``: what all ranks have to begin with alike.
- ``heartbeats``: which agents of a job this one hears.
- ``limits``: the order of a job's time limits. ``protection``: what is protected, by whom.

Called by ``agent``, ``host`` and ``rank``. Everything here is pure: no clock, socket, process or
torch.
"""
