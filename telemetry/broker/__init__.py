"""The connection to the MQTT broker, for ``fabricd.escalate`` on hosts and for ``compute``.

- ``settings``: where the broker is, and which addresses need TLS.
- ``backoff``: the pause before the next attempt to connect.
- ``latest``: retained messages to be published, the newest of each topic.
- ``inbox``: received messages that are not handled yet.
- ``interface``: what users of the connection see.
- ``tls``: the TLS context.
- ``limits``: what a broker accepts: announced limits, and packets that end connections.
- ``client``: the connection. It, ``inbox``, ``once``, ``library_hooks`` and ``socket_hooks`` alone
  import the MQTT library.

Import the submodules: the package itself loads nothing, so that a daemon without a broker pays
nothing.
"""
