"""The gpu-scheduler: claimed pods bound to exact GPUs, never one GPU twice.

Read in this order: `run` (the process), `desk` (what was seen becomes events of the engine, its actions
become jobs), `wish` (what a pod asks), `bind` (one job performed: leases, claim, binding), `leases` and
`claims` (the two guards), `release` (what an ended pod held is freed), `sweep` (what was left over), `tell`
(events, conditions and claim status, written later).
"""
