"""A codec of grpclib that leaves messages as they are: `protobuf.py` reads them."""

from typing import Any

from grpclib.encoding.base import CodecBase


class PlainCodec(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data
