"""``fabricctl plugin check``: may the hosts of a job run it together?

`answer` is what one host says of itself, `reach` asks hosts, `compare` judges their answers. The
command line calls them.

Nothing is changed on any host.
"""
