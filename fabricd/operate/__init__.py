"""What operators ask of a running daemon (drains, windows, switches) and what they are told."""
