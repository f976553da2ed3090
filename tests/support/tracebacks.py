"""Tracebacks in the log of a process of ours."""

import re

# uvloop prints this when a TLS connection that is being read was closed, as happens on a starved machine.
UVLOOP = re.compile(
    r"Fatal error on SSL protocol\nprotocol: .*\ntransport: .*\n"
    r"Traceback .*\n(?:  .*\n)*RuntimeError: .*closed\n?"
)


def tracebacks(log: str) -> list[str]:
    """Return every traceback in a log, without those of uvloop about a connection that a peer has closed."""
    ours = UVLOOP.sub("", log)
    found = [ours[match.start() :][:3000] for match in re.finditer("Traceback", ours)]
    return found + [line for line in ours.splitlines() if '"exception"' in line]
