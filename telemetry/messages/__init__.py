"""What hosts, fabric-compute and operators say to each other over the broker.

- ``topics``: the names of all topics, and who may write and read each.
- ``envelope``: a CloudEvent in structured JSON, to bytes and back.
- ``documents``: the data of each message type.

Nothing here opens a connection. Callers: ``fabricd.escalate`` on hosts, ``compute`` on management
hosts. A message that is not exactly what is described raises ``BadMessageError`` and changes
nothing.
"""
