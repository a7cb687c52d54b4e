"""From evidence to verdict: which link, which path, or whose host. Pure but for `localization`.

`verdict` judges silence (`silence`, `progress`, `receive_path`), `loss` lasting loss
(`sequential`, `baseline_rate`, `loss_rules`, `loss_state`), `mtu` black holes, `rules` the NICs'
counters, `unseen` what was never heard, `bye` what left by intent. `locate` places a fault by
the pattern of failing pairs; `localization` asks the neighbours (`neighbours`, `observations`) and
keeps the places. `mesh` chooses which pairs are probed. The engine and the host call them.

Time is a parameter (``now``, CLOCK_MONOTONIC ns), and no verdict is given without a witness.
"""
