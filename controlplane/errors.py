"""Errors of the control plane, each with a message that says what to do.

ControlPlaneError
├── ToolboxError     a binary could not be found or built
└── ClusterError     a part of the cluster did not start, or a command against it failed
"""


class ControlPlaneError(Exception):
    pass


class ToolboxError(ControlPlaneError):
    pass


class ClusterError(ControlPlaneError):
    pass
