"""Read the fields of a protobuf message without generated code: we read few messages and send none back.

A field of a newer kubelet that we do not know is skipped, as protobuf promises.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10


class BadMessage(ValueError):
    """The bytes are not a protobuf message."""


def texts(message: bytes, number: int) -> list[str]:
    """Return the values of a string field, in order."""
    return [value.decode(errors="replace") for value in parts(message, number)]


def text(message: bytes, number: int) -> str:
    """Return a string field that is there once; the last counts, empty if there is none."""
    return (texts(message, number) or [""])[-1]


def parts(message: bytes, number: int) -> list[bytes]:
    """Return the values of a field of bytes, strings or messages, in order."""
    return [value for field, value in _fields(message) if field == number]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, number = key & 7, key >> 3
        if kind == VARINT:
            _, at = _varint(message, at)
            continue
        if kind == BYTES:
            size, at = _varint(message, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise BadMessage(f"field {number} has unknown wire type {kind}")
        if at + size > len(message):
            raise BadMessage(f"field {number} is longer than the message")
        if kind == BYTES:
            yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at this place, and the place after it."""
    value = 0
    for shift, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise BadMessage("a number does not end")
