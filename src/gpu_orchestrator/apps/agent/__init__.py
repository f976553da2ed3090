"""The node agent: which GPUs are there, how they are, who uses them, and an alarm if that was not decided.

One on each node. Every few seconds it looks at devices and processes; what it finds becomes the node's
GpuNodeStatus, its `gpu.scheduling/milligpu`, metrics and events. Read the modules in this order:

  run          the process: settings, source of devices, servers
  agent        connects the parts, and looks again and again
  looker       reads devices, processes and their cgroups in a thread
  plausible    pure: a look with nothing in it that a report cannot hold
  memory       pure: what is remembered from look to look, starting from the last report
  numbering    pure: an id for each UUID, which stays with it
  health       pure: readings over time → healthy or not, with flapping damped
  usage        pure: processes and the kubelet's answers → which pods use a device
  given_devices  remembers what the kubelet gave to pods, until neither it nor a process tells of them
  survey       pure: all of that → the status to publish, and whether it differs beyond noise
  publisher    writes the GpuNodeStatus when it changed, and every five minutes
  pace         pure: bounds the writes
  heartbeat    the sign of life, and one agent on each node
  capacity     gpu.scheduling/milligpu in the node's status
  mismatch     compares the pods that use a device with those that were given it
  taint        keeps new pods off a node with a mismatch, if the settings say so
  mps_plan     pure: which MPS daemons to start, list and end, and when
  mps_daemons  keeps them, with one folder each
  mps_leases   watches who holds the node's devices
  metrics      Prometheus metrics, of the agent and of each device
  settings     the settings file and flags
"""
