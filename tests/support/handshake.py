"""TLS handshakes in memory, for tests of which certificates each side refuses."""

import ssl


def shake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """Do a handshake. Raise the error of the side that refuses the other's certificate."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        sides = [side for side in sides if not _is_done(side)]
        if not sides:
            return
    raise AssertionError("the handshake does not end")


def strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make the context verify as strictly as Python 3.13 and newer do by default."""
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
