"""Fabric time: estimator, mesh solve and clock page. Empty until the clock work lands."""
