"""The compute subsystem on management hosts. Empty until the escalation work lands."""
