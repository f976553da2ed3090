"""Requests over HTTP: `base` has the protocol and the aiohttp transport, `pooled` with `http1` the fast one
for small writes, `codec` the JSON and `urls` the paths.
"""
