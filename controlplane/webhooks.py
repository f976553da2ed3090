"""Let an API server call a webhook that is a process of this machine instead of its Service: simulated nodes
run no containers."""

from controlplane.api import Api

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
TIMEOUT_S = 30


def call_process(api: Api, name: str, port: int) -> None:
    """Change both configurations of this name so that they call the process that listens on this port. The
    API server waits for it: a busy machine must not let requests pass it by."""
    for kind in KINDS:
        path = f"{ADMISSION}/{kind}/{name}"
        found = api.request("GET", path)
        for each in found["webhooks"]:
            service = each["clientConfig"].pop("service")
            each["clientConfig"]["url"] = f"https://127.0.0.1:{port}{service['path']}"
            each["timeoutSeconds"] = TIMEOUT_S
        api.request("PUT", path, found)
