"""``./run bench detect``: how well faults are seen, placed and not imagined."""
