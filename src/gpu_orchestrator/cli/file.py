"""`gpu-orchestrator file …`: files that tasks take, and those that they leave."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import App, Parameter

from gpu_orchestrator.cli import client, output, where
from gpu_orchestrator.cli.options import HERE, AsJson, Limit, Offset, Server
from gpu_orchestrator.cli.tables import Column
from gpu_orchestrator.client.blocking import Client
from gpu_orchestrator.client.errors import ClientError

app = App(name="file", help="Upload files for tasks, and download what tasks leave.")
ORDER = ("upload", "list", "download", "delete")
COLUMNS = (Column("FILE"), Column("NAME"), Column("BYTES", 1), Column("EXPIRES", 2))
FileId = Annotated[str, Parameter(help="The file's id, as `file list` shows it.")]
T = TypeVar("T")


@app.command(sort_key=ORDER.index("upload"))
def upload(
    path: Annotated[Path, Parameter(help="The file.")],
    /,
    *,
    name: str = "",
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"))] = False,
    server: Server = HERE,
) -> None:
    """Upload a file. In the parameters of a task, `{"$file": "ID"}` stands for it.

    Parameters
    ----------
    name
        Call it so, instead of by the last part of its path.
    quiet
        Print the id alone.
    """
    if not path.is_file():
        output.fail(f"{path} is not a file here")
    with _client(server) as asked:
        file = _done(lambda: asked.upload(path, name=name))
    output.say(file.id if quiet else f'{file.name}, {file.bytes} bytes: {{"$file": "{file.id}"}}')


@app.command(name="list", sort_key=ORDER.index("list"))
def list_(*, limit: Limit = 50, offset: Offset = 0, json_: AsJson = False, server: Server = HERE) -> None:
    """List your files, those that expire last first."""
    answer = client.ask(server, "GET", "/files", query={"limit": limit, "offset": offset})
    if json_:
        return output.show_json(answer)
    rows = [
        [each["file_id"], each["name"], str(each["bytes"]), each["expires_at"]] for each in answer["files"]
    ]
    output.show_table(COLUMNS, rows)
    if rows and offset + len(rows) < answer["total"]:
        output.note(f"{len(rows)} of {answer['total']} (--limit, --offset)")
    return None


@app.command(sort_key=ORDER.index("download"))
def download(file_id: FileId, to: Path = Path(), /, *, server: Server = HERE) -> None:
    """Download a file.

    Parameters
    ----------
    to
        Where it goes: a path, or a folder in which it gets its own name.
    """
    with _client(server) as asked:
        output.say(str(_done(lambda: asked.download(file_id, to))))


@app.command(sort_key=ORDER.index("delete"))
def delete(file_id: FileId, /, *, server: Server = HERE) -> None:
    """Delete a file. Tasks that name it and have not begun will fail."""
    with _client(server) as asked:
        _done(lambda: asked.delete(file_id))


def _client(server: Server) -> Client:
    try:
        place = where.find(server)
    except where.BadPlace as error:
        output.fail(error)
    return Client(place.url, key=place.key, ca=place.ca)


def _done(work: Callable[[], T]) -> T:
    try:
        return work()
    except (ClientError, OSError) as error:
        output.fail(error)
