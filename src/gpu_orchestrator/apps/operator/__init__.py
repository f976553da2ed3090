"""The operator: finds a node for each GPUWorkload, runs it there as a Job, and reports its state.

One pass over a workload: snapshot → reconcile → plan → apply. Read the modules in this order:

  controller                the watches fill a queue of workload keys; each pass takes one key from it
  observe/watches           the four watches: nodes, pods, Jobs, workloads
  observe/snapshot_reader   reads the snapshot of one workload from the watches and the operator's own writes
  observe/ended_pods        asks the API server why an ended pod failed, and where it ran
  observe/job_events        asks the API server why a Job creates no pod
  observe/workload_volumes  asks the API server where a workload's volumes can be mounted
  observe/owned_jobs        which Jobs count: those of workloads that exist
  observe/claimed_nodes     which nodes have claimed pods: plain workloads keep away from them
  observe/capacity          the engine: what is free, who waits for it, and the reservations
  planning/snapshot         what is known about one workload: it, its Jobs, its pods
  planning/reconcile        decides from a snapshot what to do next, and returns a plan
  planning/place            no Job yet: reserve a place and plan the Job
  planning/claimed          the gpu-scheduler chooses the node: plan the Job and report how it waits
  planning/running          a Job exists: what the workload's status becomes
  planning/stuck            the Job's pod does not start: suspended, no pod, or no node takes it
  planning/retries          a try failed: wait for the next one, or give up
  planning/refusals         whether a scheduler refused the nodes or the pod itself
  planning/notes            events and messages that several of these report
  planning/status           a workload's next status from its last
  planning/plan             the values that a plan is made of
  jobs/job                  a workload's Job: name, manifest, owner
  jobs/template             the pod template: what the user wrote, completed by the operator
  jobs/inherited            which labels and annotations of a workload its Job and pods get
  jobs/labels               any text as a valid label value
  apply                     writes a plan to the API server
  metrics                   Prometheus metrics
  run                       the process: options, leader election, servers

Imports go down this list of folders: run, controller › apply, observe › planning › jobs.
"""
