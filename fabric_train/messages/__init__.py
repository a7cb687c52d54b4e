"""What processes of a job, their agents and fabric-compute say to each other, and through what.

- ``process``: messages between a process and its agent, over the ``frames`` of a Unix socket.
- ``link``: a process's end of that connection. ``keys``: questions
  to a generation's store, between agents, too. ``state_memory``: memory that both ends share.
- ``documents``: what fabric-run of one host and fabric-compute say of a job, as JSON
  (``typed_json``, ``packed``, ``short_form``). ``addresses``: ``ip:port`` texts.

Called by all other subpackages and, for the documents, by ``compute``. Whatever is decoded here is
checked: exactly the described fields and types, or an error that says which is wrong.
"""
