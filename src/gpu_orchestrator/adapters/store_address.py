"""Where the configured store is: one URL from the settings named REDIS_…, and what is wrong with them."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from gpu_orchestrator.adapters.store.valkey.address import Address, BadAddress, with_options

if TYPE_CHECKING:
    from gpu_orchestrator.adapters.settings import Settings

TLS = ("REDIS_TLS", "REDIS_CA_PATH", "REDIS_CERT_PATH", "REDIS_KEY_PATH", "REDIS_SERVER_NAME")


def url_of(settings: "Settings") -> str:
    """Return the address of the configured store; empty if none is."""
    url = settings.redis_url or _from_sentinels(settings) or _from_host(settings)
    if not url:
        return ""
    return with_options(
        url,
        ca=settings.redis_ca_path,
        cert=settings.redis_cert_path,
        key=settings.redis_key_path,
        server_name=settings.redis_server_name,
    )


def complaint(settings: "Settings") -> str:
    """Return what is wrong with these settings and what to do; empty if nothing is."""
    return _apart(settings) or _with_tls(settings) or _unusable(settings) or _replicas(settings)


def _from_sentinels(settings: "Settings") -> str:
    if not settings.redis_sentinels:
        return ""
    hosts = ",".join(each.strip() for each in settings.redis_sentinels.split(","))
    name = quote(settings.redis_sentinel_master, safe="")
    return with_options(
        f"sentinel{_s(settings)}://{_password(settings)}{hosts}/{name}",
        db=str(settings.redis_db or ""),
        sentinel_password=settings.redis_sentinel_password,
    )


def _from_host(settings: "Settings") -> str:
    if not settings.redis_host:
        return ""
    place = f"{settings.redis_host}:{settings.redis_port}/{settings.redis_db}"
    return f"redis{_s(settings)}://{_password(settings)}{place}"


def _s(settings: "Settings") -> str:
    return "s" if settings.redis_tls else ""


def _password(settings: "Settings") -> str:
    return f":{quote(settings.redis_password, safe='')}@" if settings.redis_password else ""


def _apart(settings: "Settings") -> str:
    if bool(settings.redis_sentinels) != bool(settings.redis_sentinel_master):
        return (
            "REDIS_SENTINELS and REDIS_SENTINEL_MASTER go together: give the Sentinels' addresses, and the "
            "name that they have for the primary (`sentinel monitor NAME …`)"
        )
    if settings.redis_sentinels and (settings.redis_url or settings.redis_host):
        return "REDIS_SENTINELS says where the store is: leave REDIS_URL and REDIS_HOST empty"
    return ""


def _with_tls(settings: "Settings") -> str:
    given = [name for name in TLS if getattr(settings, name.lower())]
    if not given or url_of(settings).startswith(("rediss://", "sentinels://")):
        return ""
    return (
        f"{', '.join(given)}: only a store with TLS takes this; give REDIS_URL=rediss://… or sentinels://…, "
        "or REDIS_TLS=true with REDIS_HOST or REDIS_SENTINELS"
    )


def _unusable(settings: "Settings") -> str:
    try:
        if (url := url_of(settings)) and (tls := Address.of(url).tls):
            tls.context()
    except BadAddress as error:
        return f"{'REDIS_URL' if settings.redis_url else 'the address of the store'} {error}"
    return ""


def _replicas(settings: "Settings") -> str:
    if not settings.durability_replicas or (settings.durability == "strict" and url_of(settings)):
        return ""
    return (
        f"DURABILITY_REPLICAS={settings.durability_replicas} needs DURABILITY=strict and a store of your own "
        "with replicas: set both, or leave it at 0"
    )
