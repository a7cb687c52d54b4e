"""Acceptance on real hosts: `accept.sh` runs there, `report.py` judges what it gathered."""
