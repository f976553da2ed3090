"""Compare resourceVersions. The API server orders those of one kind of object by their number."""

from gpu_orchestrator.api.wire import Object


def is_newer(version: str, than: str) -> bool:
    """Return True if `version` is later than `than`. Without numbers, any different one is later."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than


def is_newer_object(obj: Object, than: Object) -> bool:
    return is_newer(obj.metadata.resource_version, than.metadata.resource_version)
