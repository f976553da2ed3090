"""Frames of a WebSocket as a server writes them, which does not mask them (RFC 6455).

The manager encodes them itself, where uvicorn would encode the same bytes for every watcher again."""

TEXT, BINARY = 0x81, 0x82
"""The first byte of a frame that is a whole message."""


def encoded(kind: int, message: bytes) -> bytes:
    """Return a message as one frame."""
    size = len(message)
    if size < 126:
        return bytes((kind, size)) + message
    if size < 1 << 16:
        return bytes((kind, 126)) + size.to_bytes(2, "big") + message
    return bytes((kind, 127)) + size.to_bytes(8, "big") + message
