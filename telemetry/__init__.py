"""What all parts share about events, and how it reaches people: timeline, metrics, counters."""
