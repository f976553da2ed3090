"""Other task queues, measured beside ours. They run in an environment of their own, `.venv/bench`.

Each file is both the worker's application and a small client, `python FILE WORD COUNT`; `client.py` says what
the words are. The server's address comes in STORE_URL.
"""
