"""The manager: accepts tasks over HTTP, places them on the GPUs of its workers, and loses none.

The way of one task: gate → route → submission → admission → dispatcher → assignment → session ⇒ worker ⇒
session → outcomes → completion → response. Read the modules in this order:

  server                    the process: listening socket, store, manager and uvicorn
  manager                   builds all parts of one process and runs the background loops
  readiness                 whether this process can accept tasks, and what is missing
  scrape                    what GET /metrics shows
  siblings                  what several API processes of one server show together

  http/app                  builds the ASGI application from the routes
  http/uvicorn_tuning       wraps uvicorn's transport to save system calls
  http/guarded_protocol     uvicorn's protocols with bounds on heads, slow requests and open connections
  http/request_pace         how long a head may be, and how slowly a request may come
  http/gate                 every request passes it: correlation id, metrics, audit, error bodies
  http/acknowledgement      with DURABILITY=strict: holds answers back until the change is durable
  http/route_auth           checks the key and the scope that a route needs
  http/routes/tasks         submit, list, show, wait, explain
  http/task_filter          which tasks a list or a bulk change is about
  http/routes/task_changes  cancel and retry, one task or many
  http/task_changes         cancels and retries in parts, with an outcome for each task
  http/responses            reads bodies, makes JSON responses
  http/submission           checks a request, builds task specs, refuses what can never fit
  http/task_wishes          when and where a task may run: not_before, expires, pool
  http/task_files           which files its parameters name
  http/dependencies         after which others: depends_on, on_failure
  http/result_cache         answers a task that asks for it by an equal one that has completed
  http/task_gangs           the members of gangs, and why one can never start
  http/gang_waits           where a gang would go, or why it waits
  http/kept_waits           which places, kept for others, keep a task out
  http/routes/gangs         shows a gang and its members
  http/scheduling           bodies into schedules, and rows of schedules into answers
  http/routes/schedules     add, list, show, pause, resume, run and delete schedules
  http/task_models          the model of a task: which one, is it known, how long a load may take
  http/model_loading        loads and unloads models where an operator says so
  http/rebalancing          moves models between workers
  http/routes/rebalance     asks for that
  http/routes/models        the registry of models; what is loaded where; load, unload and pin
  http/routes/openai        OpenAI's API: each request is a task of its model's handler
  http/openai_answer        waits for that task, or follows it, and answers; cancels it if the client leaves
  http/cold_start           loads the model of a client that will not wait for it
  http/wait_stream          tells a client of many tasks as they end
  http/routes/logs          shows the log of a task
  http/log_stream           sends a log to a client that follows it
  http/routes/stream        shows the partial results of a task
  http/value_stream         sends partial results to a client that follows them
  http/routes/results       sends the result of a task, however large
  http/routes/files         upload, list, download and delete files
  http/routes/workers       worker connections; list, cordon, drain, restart and remove workers
  http/routes/events        events by page, as server-sent events, over a WebSocket
  http/event_streams        sends events to one watcher
  http/socket_frames        writes frames to a WebSocket that are encoded already
  http/routes/cluster       health, state of the cluster, metrics
  http/routes/keys          create, list and revoke keys; show limits
  http/routes/audit         shows the audit log
  http/routes/callbacks     makes and deletes callback secrets
  http/openapi              describes routes for OpenAPI
  http/reference            the API reference as Markdown
  http/routes/pages         the page at /, the API reference, the OpenAPI document
  http/html                 renders these pages

  access/connections        open connections: strangers give way to callers with a key
  access/keys               keys, their scopes, and this process's copy of them
  access/key_sync           keeps that copy in step with the store
  access/rate_limiter       admits or refuses a request by key and route
  access/sliding_window     counts the requests of a key
  access/limits             the limits of one key
  access/quotas             the limits of each owner, and its use today
  access/audit              records every call that changes something
  access/schema             bodies for keys, limits, audit and callback secrets

  tasks/overview            workers, free room and counts, read from the store and cached for a second
  tasks/admission           submits the tasks of many requests together; owners take turns
  tasks/batching            collects items while a call to the store is in flight

  dispatch/leader           leader election; the leader has a dispatcher and expires dead workers
  dispatch/dispatcher       feeds the engine, and stores its assignments in batches
  dispatch/deps             what the dispatcher is built from
  dispatch/intake           what the store says of tasks, workers and limits, as events for the engine
  dispatch/timer            when the dispatcher looks again
  dispatch/reserving        how places are kept for tasks and gangs that smaller ones pass
  dispatch/models           what waiting tasks of models reserve, and which models are loaded ahead of them
  dispatch/task_table       the tasks that the leader tracks: all that have not ended
  dispatch/assignment       what to store for an assignment, and what to send to the worker
  dispatch/gang_assignment  gangs: all members in one write, or none
  dispatch/reaper           whose lease has expired, and whether to believe it
  dispatch/maintenance      the leader's chores: tasks that are due, old tasks and workers, the history

  fleet/nodes               a worker as a node of the core, a task as a request
  fleet/past_attempts       what earlier attempts teach about the next: where it goes, how much it reserves
  fleet/models              what is known of models: declared, measured, pinned; what a task of one reserves
  fleet/kept_places         these places, in words and as what is not free for others
  fleet/model_words         why a task of a model waits, and which models are known, in words
  fleet/rows                reads rows of the store into workers and a cluster
  fleet/fleet_view          a copy of the fleet, its sums and its cluster, updated worker by worker
  fleet/device_gauges       the metrics of all devices as text
  fleet/strategies          the placement policies for tasks
  fleet/words               refusals in the manager's words
  fleet/alerts              when the readings of a device raise an alert

  workers/sessions          the connected workers, and the way to those of other processes
  workers/session           one worker's connection: messages in order, leases
  workers/tickets           what a worker of Celery gets in place of assignments, and redeems
  workers/session_config    lease, renewal and report intervals
  workers/transports        WebSocket or long polling
  workers/listener          receives what other processes publish

  tasks/inputs              puts the results of other tasks into the parameters of a task
  tasks/outcomes            writes the reports of workers to the store in batches
  tasks/results             keeps large results in files or S3
  tasks/files               takes and keeps files, within the bounds of their owner
  tasks/retention           forgets ended tasks early when there are too many, and deletes results
  tasks/service_times       how long tasks of each type and model run
  tasks/task_logs           writes what attempts print to the store; keeps all logs within their bound
  tasks/task_values         writes partial results to the store, and tells workers what was taken
  tasks/followers           wakes the clients that follow a log or a stream of values here
  tasks/completion          wakes the requests that wait for a task to end
  tasks/reading             tasks as callers ask for them: by the start of an id, now or once they have ended
  tasks/explain             why a task waits, for every worker and device
  tasks/waiting             why queued tasks wait and their place in the queue, for lists

  autoscale/load            what waits and who works, in numbers
  autoscale/decision        how many workers there should be, and which go
  autoscale/scaler          the leader's loop: look, decide, store, tell
  autoscale/provisioners    makes what starts and ends workers, as the settings say
  autoscale/schema          answers and events about scaling

  schedules/cron            the moments of a cron expression in a time zone
  schedules/moments         which moments that are due are run, and which comes next
  schedules/template        the task of a schedule, between its moments
  schedules/firing          the leader's chore of queueing tasks whose moment has come

  models/model_sync         keeps this process's book of models in step with the store
  models/rebalance          which models to move, and why
  models/rebalance_schema   bodies and events of that
  models/schema             bodies for models
  models/views              models and their copies as response bodies

  openai/requests           bodies of OpenAI's API, and the parameters of their tasks
  openai/answers            results of tasks as answers of OpenAI's API
  openai/chunks             the same in pieces, for streams
  openai/problems           errors of OpenAI's API

  events/event_feed         events for all watchers of this process
  events/encoding           events as they are sent, joined once for all watchers
  events/callbacks          sends callbacks when tasks end
  events/signing            the secrets that sign callbacks
  events/history            the history of the cluster

  views                     rows of the store as response bodies
  worker_list               workers as they are listed; what did not change is encoded once
  task_schema               request and response bodies for tasks
  schedule_schema           those for schedules
  schema                    the other bodies, and what all of them share
  metrics                   Prometheus metrics
  errors                    the errors of the HTTP API

Imports go down this list of folders: server › http › manager › readiness, scrape › autoscale › workers,
dispatch › tasks, events, schedules, models › views › fleet, access, openai › errors, metrics, siblings,
schedule_schema › task_schema › schema.
"""
