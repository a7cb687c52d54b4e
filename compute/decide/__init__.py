"""What fabric-compute decides. Pure: messages and the time go in, effects come out.

- ``policy``: the limits of all decisions.
- ``evidence``: is a host lost? Votes of probing peers, last wills, the job's own agents.
- ``budget``: how many hosts may be fenced, and which losses blame a switch instead.
- ``placement``: which process holds which rank in a job's first and next generation.
- ``ranks``, ``choice``, ``recovery``: what documents say of ranks; what agents chose; takeovers.
- ``progress``: how far the newest generation has come, and what of it is overdue.
- ``decision``, ``job``: one job: formation, takeovers, end.
- ``decider``: all hosts and jobs of one fabric-compute.

Each decision is a function of the newest documents of all hosts, so a lost, repeated or late
message does no harm, and two fabric-computes with the same documents decide the same.
"""
