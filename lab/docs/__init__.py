"""The documentation: pages that are generated from the code, and checks of all pages.

``python -m lab.docs`` rewrites the generated parts of ``docs/reference``. ``lab.docs.pages`` reads
pages for the checks in ``tests/unit/test_docs.py``. Needs no root, network or running daemon.
"""
