"""The control socket: what `fabricctl` asks of the daemon, and who may ask.

`server` speaks newline-delimited JSON over a Unix socket, `access` judges the caller, `requests`
and `job_requests` answer. The daemon opens the socket; `escalate` judges callers of the job socket
by the same rules. `accepting` takes connections at a pace, `places` says who gets one, `pace` and
`work_pace` how much a user may send and ask.

Input is untrusted: a request that is refused is counted and changes nothing.
"""
