"""Fabric time: the pure parts of the estimator (trains, fit, mesh); nothing runs them yet."""
