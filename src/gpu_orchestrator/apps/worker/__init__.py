"""A worker: joins a cluster manager over one WebSocket and runs its tasks on this machine's GPUs.

Three kinds of processes: the agent, and for each runner a keeper and the runner itself. One attempt:
Assign from the manager → attempts → runner_pool → runner_handle ⇒ keeper → runner → handler, and the outcome
back the same way until the manager acknowledges it. Read the modules in this order:

  agent                     the process that an operator starts: session, lease, drain; never imports CUDA
  desk                      where a Celery worker's processes present tickets and wait for their attempts
  session/connection        the WebSocket to the manager
  session/servers           the servers it knows: which one to try next, and when
  session/requests          requests beside that connection: for files of its tasks
  session/lease             until when this worker may run its attempts
  session/report            memory, temperature and faults of the devices now
  session/system            CPU, memory and operating system of this machine
  attempts/attempts         every attempt from Assign to the acknowledged outcome: waiting, running, ended
  attempts/deadlines        ends a running attempt: soft limit, hard limit, cancellation
  attempts/attempt_output   sends what attempts print: their logs and their progress
  attempts/attempt_values   passes on partial results, and keeps them until the manager has taken them
  attempts/attempt_files    fetches files that tasks take, and sends those that they leave
  attempts/outcome          how an attempt ended, as a message to the manager and as a log line
  runners/runner_pool       the runners by their set of devices: starts, reuses and ends them
  runners/runner_handle     one runner as the agent sees it: starts it, sends frames, watches it end
  runners/mps               NVIDIA's MPS daemons, which hold tasks to the device memory that they reserved
  runners/model_copy        the model of one runner: is it loaded, how long that took, what it holds
  runners/model_cache       the models that stay loaded: which must go, and when
  runners/raw_output        the pipe for what C code and child processes print
  runners/keeper            parent of each runner, by adapters/keeper: ends it and all its children when the
                            agent dies or the lease expires
  runners/runner            the process in which handlers run, one task after another, on one set of devices
  runners/held_model        the model in a runner: an object of the operator's class
  runners/output            `sys.stdout` and `sys.stderr` of a runner
  runners/values            partial results of a runner's task, which waits while the manager is behind
  runners/files             files that a runner's task takes and leaves
  runners/failure           a failed handler as text: its traceback
  runners/device_errors     what an error says about the device: out of memory, or a broken context
  attempt                   one attempt: its task, its devices, its times
  transcript                what one attempt prints, as lines for its log and as progress
  frames                    the messages between agent and runner
  handlers/find             the handler of each task type
  handlers/partial          handlers that are generators: what they yield is sent
  handlers/importable       checks at start that registered functions can be imported, finds tasks of modules
  handlers/echo             task type `echo`: returns its parameters
  handlers/sleep            task type `sleep`: waits
  handlers/vram             task type `vram`: allocates, fills, checks and frees device memory
  handlers/function         task types of `--app`: functions that are decorated with `@task`
  handlers/python           task type `python`: calls a function that the operator registered
  handlers/text_generation  task type `text_generation`: a language model of transformers, if installed
  handlers/embedding        task type `embedding`: vectors of texts, likewise
  handlers/image_generation  task type `image_generation`: a pipeline of diffusers, likewise
  handlers/torch_device     what these share: local weights, and where they go
  handlers/server           a model that a server with OpenAI's API holds, which the runner starts
  handlers/openai_client    asks such a server, and ends the request of a cancelled task
  handlers/server_watch     keeps that server running: healthy, started again after a crash or a hang, drained
  handlers/server_process   one start of it: is it healthy, has it ended, end it with all that it started
  handlers/http             task type `http`: forwards the task to a server beside the worker
  handlers/command          task type `command`: runs a program; off by default
  task                      what a handler receives: the task, its progress and its cancellation
  environment               what processes that run users' code start with: no secrets, a safe search path
  settings                  the settings of one worker, checked at its start
  main                      the process: signals and the agent

Imports go down: main › agent › desk › session | attempts › runners › attempt › handlers › settings | task ›
frames | environment | transcript.
"""
