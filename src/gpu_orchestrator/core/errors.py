"""What can be wrong with a question put to the core.

CoreError
├── InvalidRequest   a request or node that contradicts itself
├── Oversold         a placement that does not fit where it was put
└── Unknown          a node or holder that the cluster does not have
"""


class CoreError(Exception):
    """Base of all errors of the core."""


class InvalidRequest(CoreError):
    """Asked for something that cannot be meant."""


class Oversold(CoreError):
    """Somebody else has what this placement would take."""


class Unknown(CoreError):
    """No such node, or nobody of that key holds anything there."""
