"""Slow, congested or broken: one-way delay and queueing per path, rails that lag their siblings."""
