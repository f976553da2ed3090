"""A worker: joins a cluster manager over one WebSocket and runs its tasks on this machine's GPUs.

agent.py     the process an operator starts: session, lease, drain; never imports CUDA
  link.py      the WebSocket                          lease.py    until when what runs is ours
  work.py      attempts: waiting, running, ended      report.py   what the devices say now
  crew.py      the runners, by their devices          process.py  one runner as the agent sees it
keeper.py    parent of each runner: ends it with all its children when the agent dies or the lease is over
runner.py    where handlers run, one task after another, on one set of devices
"""
