"""Frames of a WebSocket (RFC 6455): as a server writes them, which does not mask them, and where one ends.

The manager encodes them itself, where uvicorn would encode the same bytes for every watcher again."""

TEXT, BINARY = 0x81, 0x82
"""The first byte of a frame that is a whole message."""
MASK_BYTES = 4


def encoded(kind: int, message: bytes) -> bytes:
    """Return a message as one frame."""
    size = len(message)
    if size < 126:
        return bytes((kind, size)) + message
    if size < 1 << 16:
        return bytes((kind, 126)) + size.to_bytes(2, "big") + message
    return bytes((kind, 127)) + size.to_bytes(8, "big") + message


def head_size(data: bytes, at: int) -> int:
    """Return how many bytes of a frame that begins there come before its payload."""
    second = data[at + 1]
    length = second & 0x7F
    more = 0 if length < 126 else 2 if length == 126 else 8
    return 2 + more + (MASK_BYTES if second & 0x80 else 0)


def frame_size(data: bytes, at: int) -> int:
    """Return how many bytes a frame has that begins there; 0 while too little of its head has arrived."""
    if len(data) < at + 2:
        return 0
    second = data[at + 1]
    length = second & 0x7F
    if length < 126:
        return length + (2 + MASK_BYTES if second & 0x80 else 2)
    head = head_size(data, at)
    if len(data) < at + head:
        return 0
    return head + int.from_bytes(data[at + 2 : at + (4 if length == 126 else 10)], "big")
