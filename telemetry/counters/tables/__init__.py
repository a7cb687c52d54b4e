"""Drivers' own counter names, one table per driver. Data only."""
