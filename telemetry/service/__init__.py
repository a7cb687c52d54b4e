"""What every service of the project needs to run: files, logs, systemd, positions in a TOML file.

- ``durable``: small files that are whole after a power cut.
- ``logs``: structured lines for journald.
- ``systemd_notify``: readiness, watchdog, sockets of the service manager.
- ``toml_lines``: the line of each key of a TOML text.
"""
