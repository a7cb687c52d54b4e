"""The host daemon: configuration, links, detection, steering, control socket and CLI."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fabricd")
except PackageNotFoundError:  # run from a tree that is not installed
    __version__ = "0+unknown"
