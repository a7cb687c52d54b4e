"""Fabric time: the estimator (trains, fit, pair, mesh) and the clock page.

All pure but for the page; nothing runs them yet.
"""
