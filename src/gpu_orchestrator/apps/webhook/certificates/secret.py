"""The Secret of certificates on the wire. Keys `tls.crt`, `tls.key` and `ca.crt` are those that other tools
know; `next.crt` and `next.key` are there while a rotation is under way."""

import binascii
from base64 import b64decode, b64encode
from dataclasses import dataclass

from gpu_orchestrator.api import names
from gpu_orchestrator.api.webhook_objects import Secret
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.webhook.certificates.authority import BadPem, read_authorities, read_leaf
from gpu_orchestrator.apps.webhook.certificates.content import Content, Leaf

CERT, KEY, BUNDLE = "tls.crt", "tls.key", "ca.crt"
NEXT_CERT, NEXT_KEY = "next.crt", "next.key"
TYPE = "kubernetes.io/tls"
LABELS = {names.MANAGED: "true"}


@dataclass(frozen=True, slots=True)
class Unusable:
    """The Secret is there, but not as we write it. `is_foreign`: someone else keeps certificates in it, which
    we must not replace."""

    why: str
    is_foreign: bool = False


def read(secret: Secret) -> Content | Unusable:
    try:
        content = _content({name: _text(name, value) for name, value in secret.data.items()})
    except BadPem as error:
        return Unusable(str(error), is_foreign=_is_foreign(secret))
    if not _is_ours(secret):
        return Unusable("was not made by the webhook", is_foreign=True)
    return content


def manifest(content: Content) -> Json:
    """Return the body of a create."""
    return {
        "type": TYPE,
        "metadata": {"name": names.WEBHOOK_SECRET, "labels": LABELS},
        "data": _data(content),
    }


def patch(content: Content, found: Secret) -> Json:
    """Return the body of a merge patch that succeeds only if the Secret is still as it was found."""
    guard = {"resourceVersion": found.metadata.resource_version, "uid": found.metadata.uid}
    gone = dict.fromkeys((NEXT_CERT, NEXT_KEY)) if content.next is None else {}
    return {"metadata": {**guard, "labels": LABELS}, "data": {**gone, **_data(content)}}


def _content(texts: dict[str, str]) -> Content:
    missing = [name for name in (CERT, KEY, BUNDLE) if not texts.get(name)]
    if missing:
        raise BadPem(f"has no {', '.join(missing)}")
    authorities = read_authorities(texts[BUNDLE])
    coming: Leaf | None = None
    if texts.get(NEXT_CERT):
        coming = read_leaf(texts[NEXT_CERT], texts.get(NEXT_KEY, ""), authorities)
    return Content(read_leaf(texts[CERT], texts[KEY], authorities), authorities, coming)


def _data(content: Content) -> dict[str, str]:
    texts = {CERT: content.serving.pem, KEY: content.serving.key_pem, BUNDLE: content.bundle}
    if content.next:
        texts |= {NEXT_CERT: content.next.pem, NEXT_KEY: content.next.key_pem}
    return {name: b64encode(text.encode()).decode() for name, text in texts.items()}


def _text(name: str, value: str) -> str:
    try:
        return b64decode(value).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise BadPem(f"holds no text in {name}") from error


def _is_ours(secret: Secret) -> bool:
    return LABELS.items() <= secret.metadata.labels.items()


def _is_foreign(secret: Secret) -> bool:
    """Tell whether somebody else keeps a certificate here: there is one, and our label is not."""
    if _is_ours(secret):
        return False
    try:
        return bool(read_authorities(_text(CERT, secret.data.get(CERT, ""))))
    except BadPem:
        return False
