"""Real NCCL over the plugin, on a machine with a GPU: ``python -m lab.gpu`` (docs/plugin.md)."""
