"""Real NCCL over the plugin, on a GPU: ``python -m lab.gpu`` (docs/design/checks.md)."""
