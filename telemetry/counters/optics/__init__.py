"""Pluggable modules: memory maps of SFF-8472, SFF-8636 and CMIS, and how they are read."""
