"""Settings of the webhook: a YAML file, overridden by flags. Unknown keys are refused."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_orchestrator.adapters import setting_file

Seconds = Annotated[float, Meta(gt=0)]


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`claim_read_seconds` is how long a claim may be read from the API server, if the watch does not show it
    yet. `drain_seconds`: after SIGTERM, go on serving this long, because the API server still calls us until
    it has heard that we are gone."""

    kubeconfig: str = ""
    bind_address: str = ":8443"
    tls_cert_file: str = ""
    tls_key_file: str = ""
    metrics_bind_address: str = ":8080"
    health_probe_bind_address: str = ":8081"
    claim_read_seconds: Seconds = 2.0
    drain_seconds: Annotated[float, Meta(ge=0, le=6)] = 3.0
    max_connections: Annotated[int, Meta(ge=1)] = 1024


def load(path: str, flags: dict[str, Any]) -> Settings:
    """Read the settings. A flag that was not given is None."""
    return setting_file.load(Settings, path, flags)
