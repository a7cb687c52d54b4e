"""Feeds `clocksync` with what the prober measured; nothing runs it yet."""
