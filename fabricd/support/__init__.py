"""``fabricctl support-bundle``: one archive of a host for a support case, without secrets.

`bundle` collects, `facts` and `state` read the system and the daemon's state, `redact` removes keys
and passwords from whatever goes in. The command line calls it.

No file of a key or password is read into an archive.
"""
