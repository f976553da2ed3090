"""What is said while files are sent and received, as steps for a driver. Does no IO but on the file itself.

A file that arrives is put together under another name and gets its own when it is complete and its SHA-256 is
right."""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from urllib.parse import quote

import msgspec

from gpu_orchestrator.api.files import File, plain_name
from gpu_orchestrator.client import errors
from gpu_orchestrator.client.conversation import PREFIX, SILENCE_S, Conversation, query
from gpu_orchestrator.client.steps import Ask, Lost, Open, Pause, Read, Reply, Steps

ANSWER_S = 300.0
"""How long a server may take to keep a file that has arrived."""
MOST_BREAKS = 5


class _Info(msgspec.Struct):
    file_id: str
    name: str
    bytes: int
    sha256: str


def named(file: File | str) -> File:
    return file if isinstance(file, File) else File(file)


def send(talk: Conversation, path: Path, name: str) -> Steps[File]:
    """Upload a file; return what stands for it. Ask first: a server that refuses a body half way is not
    heard."""
    with path.open("rb") as file:  # else a folder, or a file of others, would look like a lost connection
        room = query({"limit": "1", "room_for": str(os.fstat(file.fileno()).st_size)})
    yield from talk.ask(Ask("GET", f"{PREFIX}/files{room}"), dict)
    target = f"{PREFIX}/files{query({'name': plain_name(name or path.name)})}"
    sent = yield from talk.ask(Ask("POST", target, file=os.fspath(path), answer_s=ANSWER_S), _Info)
    return File(sent.file_id, sent.name, sent.bytes)


def receive(talk: Conversation, file: File, to: Path) -> Steps[Path]:
    """Download a file to a path, or into a folder under its own name; return where it is."""
    target = f"{PREFIX}/files/{quote(file.id, safe='')}"
    info = yield from talk.ask(Ask("GET", target), _Info)
    path = to / plain_name(info.name) if to.is_dir() else to
    new = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        for breaks in range(MOST_BREAKS):
            if (yield from _fetched(talk, f"{target}/content", new, info)):
                new.replace(path)
                return path
            yield Pause(2.0**breaks / 10)
    finally:
        with suppress(OSError):
            new.unlink()
    raise errors.Unreachable(f"file {file.id} did not arrive whole, though it was tried {MOST_BREAKS} times")


def remove(talk: Conversation, file: File) -> Steps[None]:
    yield from talk.ask(Ask("DELETE", f"{PREFIX}/files/{quote(file.id, safe='')}"), dict)


def _fetched(talk: Conversation, target: str, path: Path, info: _Info) -> Steps[bool]:
    """Write what arrives to a path; return whether it is the whole file."""
    reply = yield Open(Ask("GET", target, answer_s=ANSWER_S))
    if isinstance(reply, Reply) and reply.status >= 400 and reply.status not in (429, 502, 503, 504):
        yield from talk.ask(Ask("GET", target), dict)  # which says why
    if isinstance(reply, Lost) or reply.status >= 400:
        return False
    digest, came = sha256(), 0
    with path.open("wb") as file:
        while isinstance(piece := (yield Read(SILENCE_S)), bytes) and piece:
            digest.update(piece)
            came += file.write(piece)
    return came == info.bytes and digest.hexdigest() == info.sha256
