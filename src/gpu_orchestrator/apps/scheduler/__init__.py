"""The gpu-scheduler: claimed pods bound to exact GPUs, never one GPU twice.

Read in this order: `run` (the process), `scheduler` (how the parts are connected), `informers` (the live
copies), `desk` with its books `nodebook`, `heldbook`, `leasebook`, `waitbook` and `serving` (what was seen
becomes events of the engine, its decisions become `actions`), `wish` (what a pod asks), `work` and `bind`
(actions performed: leases, claim, binding), `leases` and `claims` (the two guards), `touch` (writes to
unbound pods), `release` (what an ended pod held is freed), `account` (claims kept true), `tell` (events and
conditions, written in a lull), `sweep` (what was left over).
"""
