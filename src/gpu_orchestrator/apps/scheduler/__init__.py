"""The gpu-scheduler: binds claimed pods to exact GPUs and never gives one GPU to two pods.

The way of one claimed pod: watch event → request → decision → leases → binding → claim status → release.
Read the modules in this order:

  run                        the process: settings, leader election, servers
  scheduler                  builds the parts for one term of leadership and connects them to the watches
  informers                  the watches and their stores, and lookups across several stores
  cycle/coordinator          turns watch events into events of the engine, and its actions into jobs
  cycle/unbound_pods         our pods that are not bound: queues each, refuses it, or clears its leases first
  cycle/bound_pods           bound and ended pods: counts what they hold, and lets go of it
  cycle/shared               what the coordinator shares with these two
  cycle/pod_request          a pod and its claim → the engine's request, or why the pod cannot be scheduled
  cycle/claim_users          which pod each claim is assigned to, from the decision until its devices are free
  cycle/surroundings         what other pods mean for a pod of ours
  cycle/anti_affinity        which terms of other pods keep a pod away
  cycle/rechecks             pods to check again because of what others have changed, for a moment per tick
  cycle/queue_changes        GpuQueues and labels of namespaces that change: pods that belong to another queue
  cycle/volume_users         which pods use each volume; some volumes serve one pod only
  cycle/volume_plans         which volumes were chosen for pods that are being bound
  cycle/preemptible          what may be evicted for a pod of higher priority, and what that loses
  cycle/preemptors           the pods and gangs for which others may be evicted
  cycle/emptied              tells gangs for which there is not enough if all others go
  cycle/pending              pods that wait: their requests to the engine, and the reason reported for each
  cycle/shape_limit          how many different shapes of one namespace wait in the engine at once
  cycle/initial_holdings     what is held when a scheduler takes over, before the engine counts it
  cycle/reserving            how the engine keeps places: the settings, and how pods and moments are called
  accounting/node_view       what each node offers, and which of its devices a device plugin's pods use
  accounting/device_owners   which devices are in dispute because several nodes report them
  accounting/holdings        what bound pods hold
  accounting/nominations     room that another scheduler has made for a pod of its own
  accounting/lease_index     device leases by device and by pod, and which of them count as taken
  accounting/pod_queues      which GpuQueue each pod belongs to
  accounting/selectors       which GpuQueues select a namespace
  accounting/agent_liveness  which nodes have a live agent
  actions                    what the coordinator asks the executor to do, and the outcomes that come back
  executor                   runs these jobs concurrently and reports each outcome to the coordinator
  binding/binder             carries out one decision: leases and claim, volumes, then the binding
  binding/device_leases      acquires and releases the Lease of a device
  binding/volume_binder      binds the volumes that wait for their pod
  binding/mps_gate           lets a pod whose share MPS holds be bound when its daemon listens
  binding/claim_status       what the status of a claim says in each phase
  binding/claim_writer       reserves a claim for a pod, and writes its status
  binding/pod_status         writes the status of unbound pods, and knows the version after our own writes
  controllers/claims         brings every claim into line with its pod, after binds and ends
  controllers/release        frees the devices of an ended pod when no process uses them any longer
  controllers/health         tells of unhealthy devices that pods have, and evicts the pods if that is wanted
  controllers/gangs          evicts what is bound of a gang whose other members find no room
  controllers/gang_marks     marks members of gangs that have begun, for the next scheduler
  controllers/pod_groups     writes the conditions of PodGroups
  controllers/queue_status   writes what each GpuQueue uses into its status
  controllers/preemption     evicts pods of lower priority, or of queues that borrow
  controllers/nominated      keeps the room of those that were evicted, for whom they were
  controllers/overruns       tells of pods that run longer than declared where others wait, or evicts them
  controllers/node_capacity  writes into a node's status how many thousandths of GPUs it has
  controllers/reporter       writes events and the PodScheduled condition
  controllers/sweep          compares leases, pods and claims at intervals, and repairs leftovers
  defrag/look                for the command `defrag`: the cluster at one moment, as the scheduler counts it
  defrag/movable             which bound pods may move, and how each would be asked for again
  defrag/plan                what to make room for, and the moves that do it
  defrag/perform             makes the moves: closes nodes, evicts, waits, opens them again
  metrics                    Prometheus metrics
  settings                   the settings file and flags

Imports go down this list of folders: defrag, run, scheduler, executor › controllers › cycle, binding ›
accounting › informers, actions, metrics.

These calls go back up, against that order:

  executor → coordinator     `done`, `cleared`, `tick`: a job's outcome, the end of a clearing, and the timer
                             that the engine asked for. They come from the event loop, never from inside a
                             call of the coordinator, so that its handlers run to their end first.
  pending, rechecks, volume_plans → executor
                             `wake`, through the coordinator: requests wait for the next tick to enter, and
                             pods to be checked again
  rechecks → coordinator     `check`: check this pod again
  bound_pods, unbound_pods, pending, holdings, nominations, lease_index, node_view → coordinator
                             `feed`: their events for the engine. Only the coordinator may perform the actions
                             that the engine returns.
  holdings, lease_index → pod_queues
                             `queue_of`: the queue in which what a pod holds counts
  pod_queues → lease_index   `recorded`: the queue that the leases of a pod name
  lease_index → coordinator  `placement_of`: what a pod counts already, so that no device counts twice
  lease_index → holdings     `keeps_lost`: whether a lease that disappeared was a live pod's; `recount` of
                             node_view: what a pod holds has changed
  surroundings, volume_plans → coordinator
                             `recheck`: other pods or volumes have changed what these pods may request
  node_view → holdings       `devices`: what a pod holds of a node, for the pods that an agent reports
  release → scheduler        `freed`: an ended pod's devices are free; `scheduler` passes this on to the
                             coordinator and to the claim controller
  reporter → scheduler       `pending_pod`: whether the pod still waits, and why, just before the write;
                             `refused`: a pod has another reason to wait, which its claim shows, too
  sweep → executor           `clear_leases`: release leftover leases of an unbound pod, then call `cleared`
"""
