"""A cluster on one machine: network namespaces, faults, and the demo. Not shipped."""
