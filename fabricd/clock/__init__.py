"""fabric-clock: feeds `clocksync` with what the prober measured, and writes the clock page."""
