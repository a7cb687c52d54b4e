"""Benchmarks of detection: simulators and measurements."""
