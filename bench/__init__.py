"""Benchmarks: each prints one table and writes bench/results/NAME.json."""
