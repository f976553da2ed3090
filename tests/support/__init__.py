"""Helpers that tests share: builders, fakes at the edge, real servers and processes to test against.

Any test:
  paths               the folder of the repository
  scale               one scenario in two sizes, for `make test` and `make accept`
  examples            how many examples Hypothesis tries of a property
  resume_ledger       lets an interrupted `make accept` resume
  side_by_side        which tests may run at the same time
  summary             prints figures and slow files at the end of a run

Core and engine:
  builders            clusters, placements and links
  generators          random clusters, requests and changes from a seed
  oracle              the scheduling rules again, slow and simple, to compare the core with

API types and the kube adapter:
  wire_values         Hypothesis strategies from the API types
  installed_kinds     our CRDs on a real API server, and objects for it
  kube_objects        small objects for tests of the adapter
  kube_certificates   a certificate authority and the pairs it signs
  handshake           TLS handshakes in memory
  scripted_transport  a transport that answers from a script
  watch_follower      a running watch, and a second record of what its handler received
  election_lease      one Lease behind a transport that loses, delays and refuses requests
  elector_process     one process of the election scenarios

Scheduler and operator:
  scheduler_objects   pods, nodes, claims and leases as the API server returns them
  scheduler_harness   the coordinator with an executor that only records
  scheduler_stage     a namespace in a real cluster with real scheduler processes
  lease_server        Leases as an API server keeps them, behind a transport
  object_history      everything that happened to some kinds of objects, by revision
  invariants          rules that must hold at every revision of that history
  operator_builders   workloads, Jobs, pods and nodes
  operator_process    the operator as a real process, and its workloads in a real cluster

Webhook:
  admission_reviews   AdmissionReviews as an API server sends them, and as nobody would
  pod_json            pods as JSON, and Hypothesis strategies for odd ones
  json_patch          applies a patch as the API server does
  asgi                calls an application without a server
  review_app          the webhook's application with a few claims
  webhook_process     the webhook as a real process, and its configuration at a real API server

Manager and worker:
  stores              real Valkey servers
  store_calls         short calls of the store for its contract tests
  fleet               a whole manager with workers, and a client of its HTTP API
  scripted_worker     a worker whose messages the test decides, to test the manager
  scripted_server     a manager whose messages the test decides, to test the worker
  workers             real worker processes, and checks that none is left behind
  worker_functions    functions that `python` tasks call
  runners             one real runner without an agent
  nemesis             random faults in a whole manager
  request_mix         the mix of requests that ordinary clients send
  flood               a client that ignores all limits
"""
