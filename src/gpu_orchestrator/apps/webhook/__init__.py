"""The admission webhook: fills in pods that claim GPUs, hides GPUs from others, checks claims and workloads.

The way of one review: TLS connection → bounded body → AdmissionReview → decision → patch, denial or neither.
Decisions are pure functions of `api/`: `admission`, `jsonpatch`, `capacity`, `request_checks`. Read the
modules in this order:

  run                     the process: settings, watches, certificate, servers
  webhook                 serves while the watches are synced, and drains on SIGTERM
  server                  uvicorn with bounds on slow requests, long heads and open connections
  app                     routes: reads the body, answers with JSON, counts
  reviewer                one AdmissionRequest → one AdmissionResponse
  claim_reader            a claim from the watch or, if it is not there yet, from the API server
  queue_reader            all GpuQueues, when one of them is checked
  device_memory           keeps the sizes of all devices, for shares by memory
  certificate             the certificate to serve with, loaded again when its files change
  certificates/keeper     self-made certificates: performs what is due, and serves with the result
  certificates/rotation   pure: the Secret, what is trusted and the time → the next step
  certificates/bundles    keeps the caBundle of our webhook configurations equal to the Secret
  certificates/secret     the Secret on the wire
  certificates/authority  makes an authority with one leaf, and reads PEM
  certificates/content    what the Secret holds, as values
  metrics                 Prometheus metrics
  settings                the settings file and flags
"""
