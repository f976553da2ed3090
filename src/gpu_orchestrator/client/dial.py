"""Open connections to a server, and say in words why there is none. For the blocking client and the commands;
by the standard library, because it starts in a tenth of the time that the asynchronous one takes."""

import http.client
import os
import socket
import ssl
from urllib.parse import urlsplit

from gpu_orchestrator.client.errors import BadPlace
from gpu_orchestrator.client.where import Place

CONNECT_S = 5.0


def connection(place: Place) -> http.client.HTTPConnection:
    """Return a connection that is not open yet."""
    parts = urlsplit(place.url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port or 80, timeout=CONNECT_S)
    return http.client.HTTPSConnection(host, parts.port or 443, timeout=CONNECT_S, context=trust(place))


def trust(place: Place) -> ssl.SSLContext:
    """Return whose certificates are trusted."""
    from gpu_orchestrator.adapters import tls

    try:
        return tls.client(place.ca)
    except tls.BadCertificate as error:
        raise BadPlace(str(error)) from error


def silence(error: Exception, url: str, answer_s: float) -> str:
    """Return why there was no answer, as a few words."""
    match error:
        case socket.gaierror():
            return f"the name {urlsplit(url).hostname} is not known"
        case TimeoutError():
            return f"no answer within {answer_s:g} s"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted ({error.verify_message}); name its issuer's with ca"
        case ssl.SSLError():
            return "it does not speak TLS; is it http://?"
        case http.client.HTTPException() | UnicodeError():
            return "what answers there is something else; is it https://?"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()  # asyncio puts its own words into the error
    return str(error) or type(error).__name__
