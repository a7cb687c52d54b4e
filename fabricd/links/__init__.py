"""Local links: inventory, carrier counts, the state machine and flap damping."""
