"""The errors of the core.

CoreError
├── InvalidRequest   a request or node that contradicts itself
├── Oversold         a placement that does not fit on its node
└── Unknown          a node or holder that the cluster does not have
"""


class CoreError(Exception):
    """Base of all errors of the core."""


class InvalidRequest(CoreError):
    """The request or node contradicts itself or cannot be counted."""


class Oversold(CoreError):
    """The placement would take what another key holds."""


class Unknown(CoreError):
    """No such node, or the key holds nothing there."""
