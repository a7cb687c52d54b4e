"""The demonstration: a job on 4 hosts × 4 rails, five faults, what was seen and what it cost.

`run` plays it by the chapters of `story`; `job`, `watch`, `live` and `cpu` gather, `record` keeps.
`speed`, `analysis` and `verdict` judge, `view`, `report` and `charts` show. `rdma` is the chapter
in virtual machines, `training` the second act. ``./run demo`` (``python -m lab.demo``) calls it.

Every figure it shows was measured in that run.
"""
