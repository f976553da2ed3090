"""Settings of the webhook: a YAML file, overridden by flags. Unknown keys are refused."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpu_orchestrator.adapters import setting_file
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.api import names

Certificates = Literal["self-made", "files"]
Seconds = Annotated[float, Meta(gt=0)]
TEN_YEARS_S = 315_360_000
Host = Annotated[str, Meta(pattern=r"^[A-Za-z0-9:]([-A-Za-z0-9.:]*[A-Za-z0-9:])?$", max_length=253)]


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`claim_read_seconds` is how long a claim may be read from the API server, if the watch does not show it
    yet. `drain_seconds`: after SIGTERM, go on serving this long, because the API server still calls us until
    it has heard that we are gone.

    `certificates`: self-made ones are kept in a Secret of `namespace`; those in files are somebody else's to
    renew. By default, files if they are named. `certificate_names` are hosts in a self-made certificate
    besides that of the Service. `certificate_rotate_seconds` is its age when the next one is made; 0: two
    thirds of its life. `certificate_propagation_seconds` is how long API servers and replicas may take to
    see a change. `requests_per_connection`: an answer closes its connection with a chance of one in this
    number, because an API server would stay with one replica forever. `mps`: prepare pods with shared claims
    as clients of the MPS daemons that the agents keep; their namespaces must allow hostPath volumes."""

    kubeconfig: str = ""
    namespace: str = names.NAMESPACE
    bind_address: str = ":8443"
    certificates: Certificates | None = None
    tls_cert_file: str = ""
    tls_key_file: str = ""
    certificate_names: tuple[Host, ...] = ()
    certificate_life_seconds: Annotated[float, Meta(gt=0, le=TEN_YEARS_S)] = 90 * 86_400
    certificate_rotate_seconds: Annotated[float, Meta(ge=0)] = 0.0
    certificate_propagation_seconds: Seconds = 60.0
    metrics_bind_address: str = ":8080"
    health_probe_bind_address: str = ":8081"
    claim_read_seconds: Seconds = 2.0
    drain_seconds: Annotated[float, Meta(ge=0, le=6)] = 3.0
    max_connections: Annotated[int, Meta(ge=1)] = 1024
    requests_per_connection: Annotated[int, Meta(ge=1)] = 1000
    mps: bool = False

    @property
    def serves_files(self) -> bool:
        """Tell whether the certificate comes from files. Raise `BadSettings` if that is contradictory."""
        named = [bool(self.tls_cert_file), bool(self.tls_key_file)]
        if self.certificates == "self-made" and any(named):
            raise BadSettings(
                "certificates is self-made, but certificate files are given; "
                "leave out --tls-cert-file and --tls-key-file, or set certificates: files"
            )
        if (self.certificates == "files" or any(named)) and not all(named):
            raise BadSettings(
                "a certificate in files needs --tls-cert-file and --tls-key-file; give both, "
                "or set certificates: self-made"
            )
        return any(named)


def load(path: str, flags: dict[str, Any]) -> Settings:
    """Read the settings. A flag that was not given is None."""
    return setting_file.load(Settings, path, flags)
