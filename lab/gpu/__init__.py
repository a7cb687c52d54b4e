"""Real NCCL over the plugin, on a GPU: ``python -m lab.gpu`` (docs/design/checks.md).

`plan` says what is run and `machine` whether this machine can, `run` drives it, `worker` and `loop`
are ranks, `compare` judges the bits, and `lines` counts torn lines of LL128. `migrate` plays a
takeover with the script in `train`. It is run by hand.

Results are compared bit by bit. Without GPU, torch or NCCL it says what is missing and ends with 2.
"""
