"""Other task queues, measured beside ours. They run in an environment of their own, `.venv/bench`.

Each file is both the worker's application and a small client: `python FILE submit COUNT` submits no-ops and
prints when the last result was stored; `python FILE trip COUNT` prints the round trips of single tasks in ms.
The server's address comes in STORE_URL.
"""
