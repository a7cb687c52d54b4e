"""The documentation: pages that are generated from the code, and checks of all pages.

``python -m lab.docs`` rewrites the generated parts of ``docs/reference`` (`reference`). `pages`
reads pages for the checks in ``tests/unit/docs/test_docs.py``, and mkdocs loads `site`.

It needs no root, network or running daemon.
"""
