"""From evidence to verdict: which link, which path, or whose host."""
