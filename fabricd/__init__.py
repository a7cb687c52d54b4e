"""The host daemon: configuration, links, detection, steering, control socket and CLI."""
