"""Where the store is, read from one URL: a server, or the Sentinels that know where it is.

    redis://user:password@host:6379/0          rediss://… with TLS          unix:///run/valkey.sock?db=0
    sentinel://user:password@host1:26379,host2:26379/name-of-primary?db=0    sentinels://… with TLS

User and password are the server's; the Sentinels' are `sentinel_user` and `sentinel_password`. TLS takes
`ca`, `cert` and `key` (files) and `server_name` (the name in the certificate, if it is not the host's)."""

import re
import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote

SCHEMES = ("redis", "rediss", "unix", "sentinel", "sentinels")
PORT, SENTINEL_PORT = 6379, 26379
_TLS = {"ca", "cert", "key", "server_name"}
_OPTIONS = {
    "redis": {"db"},
    "rediss": {"db", *_TLS},
    "unix": {"db"},
    "sentinel": {"db", "sentinel_user", "sentinel_password"},
    "sentinels": {"db", "sentinel_user", "sentinel_password", *_TLS},
}
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:]*)(?::(?P<port>\d+))?")
_SECRETS = (re.compile(r"(?<=:)[^:@/]*(?=@)"), re.compile(r"(?<=sentinel_password=)[^&]*"))


class BadAddress(ValueError):
    """The address cannot be used. The message says why, to follow its name; the address itself may hold a
    password."""


@dataclass(frozen=True, slots=True)
class Place:
    """A host and port, or the path of a socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Login:
    user: str = ""
    password: str = ""
    database: int = 0


@dataclass(frozen=True, slots=True)
class Tls:
    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    def context(self) -> ssl.SSLContext:
        """Return the context; raises `BadAddress` if a file cannot be used. Files are read again for every
        connection, so that renewed certificates need no restart."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # ssl.SSLError is one
            named = " ".join(part for part in (self.ca, self.cert, self.key) if part)
            raise BadAddress(
                f"has files for TLS that cannot be used ({named}): {error.strerror or error}; give PEM files"
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class Address:
    """`primary` is the name that the Sentinels at `places` know; without one, `places` is the server
    itself."""

    places: tuple[Place, ...]
    login: Login
    tls: Tls | None = None
    primary: str = ""
    sentinel_login: Login = Login()

    @classmethod
    def of(cls, url: str) -> "Address":
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in SCHEMES:
            allowed = ", ".join(f"{each}://" for each in SCHEMES[:-1])
            raise BadAddress(
                f"begins with {scheme if separator else 'nothing'}, which is not allowed: give {allowed} "
                f"or {SCHEMES[-1]}://"
            )
        rest, _, query = rest.partition("?")
        options = _options(scheme, query)
        before, _, after = rest.rpartition("@")
        user, _, password = before.partition(":")
        hosts, _, path = after.partition("/")
        login = Login(
            unquote(user), unquote(password), _database(options.get("db") or _path_database(scheme, path))
        )
        if scheme == "unix":
            return cls((Place(path=f"/{path}"),), login)
        tls = (
            Tls(**{name: options.get(name, "") for name in _TLS})
            if scheme in ("rediss", "sentinels")
            else None
        )
        if not scheme.startswith("sentinel"):
            return cls((_place(hosts, PORT),), login, tls)
        if not path:
            raise BadAddress(
                "does not name the primary: give sentinel://host:26379/name, as in `sentinel monitor`"
            )
        asked = Login(options.get("sentinel_user", ""), options.get("sentinel_password", ""))
        places = tuple(_place(each, SENTINEL_PORT) for each in hosts.split(","))
        return cls(places, login, tls, unquote(path), asked)


def with_options(url: str, **options: str) -> str:
    """Return the address with these options added, but for the empty ones."""
    added = "&".join(f"{name}={quote(value, safe='/')}" for name, value in options.items() if value)
    return f"{url}{'&' if '?' in url else '?'}{added}" if added else url


def redact(url: str) -> str:
    """Return the address without its passwords."""
    for secret in _SECRETS:
        url = secret.sub("***", url, count=1)
    return url


def _options(scheme: str, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query))
    if unknown := sorted(set(options) - _OPTIONS[scheme]):
        known = ", ".join(sorted(_OPTIONS[scheme]))
        raise BadAddress(f"has an option that {scheme}:// does not know, {', '.join(unknown)}: give {known}")
    if bool(options.get("cert")) < bool(options.get("key")):
        raise BadAddress("has a key for TLS and no cert: give both, or a cert whose file holds the key too")
    return options


def _path_database(scheme: str, path: str) -> str:
    return path.strip("/") if scheme in ("redis", "rediss") else ""


def _database(text: str) -> int:
    if text and not text.isdigit():
        raise BadAddress(f"has no number of a database but {text!r}: give 0 to 15")
    return int(text or 0)


def _place(text: str, port: int) -> Place:
    found = _HOST.fullmatch(text)
    if found is None:
        raise BadAddress(f"has no host and port but {text!r}: give host:{port}")
    return Place(found["host"].strip("[]") or "127.0.0.1", int(found["port"] or port))
