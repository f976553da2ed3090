"""Other task queues, measured beside ours. They run in an environment of their own, `.venv/bench`.

Each file is both the worker's application and a small client, `python FILE WORD COUNT`; for the words see
`client.py`. The server's address is in STORE_URL.
"""
