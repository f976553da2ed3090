"""Objects that the webhook keeps right: the Secret of its certificates, and the webhook configurations that
tell the API servers where it is and what they shall trust."""

from msgspec import field

from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire


class Secret(Wire, frozen=True, gc=False):
    """`data` is in base64."""

    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    data: dict[str, str] = field(default_factory=dict)


class ClientConfig(Wire, frozen=True, gc=False):
    """`ca_bundle` is in base64; if it is empty, the API server trusts what its machine trusts."""

    ca_bundle: str = ""


class WebhookEntry(Wire, frozen=True, gc=False):
    name: str = ""
    client_config: ClientConfig = ClientConfig()


class WebhookConfiguration(Wire, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    webhooks: list[WebhookEntry] = field(default_factory=list)


GROUP = "admissionregistration.k8s.io"

SECRETS = Resource(Secret, "Secret", "secrets")
MUTATING_WEBHOOKS = Resource(
    WebhookConfiguration,
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    GROUP,
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    WebhookConfiguration,
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    GROUP,
    namespaced=False,
)
