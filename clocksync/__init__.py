"""Fabric time: the pure estimator (trains, fit, pair, mesh) and the clock page; nothing runs them yet."""
