"""Every place for results keeps the same contract: files of a folder, objects of an S3-like server."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.results.files import ResultFiles
from gpu_orchestrator.adapters.results.place import (
    CHUNK,
    ResultAt,
    ResultError,
    ResultMissing,
    ResultPlace,
    new_name,
)
from gpu_orchestrator.adapters.results.s3 import Bucket, S3Results
from gpu_orchestrator.adapters.results.signing import Credentials
from tests.support import s3_server

pytestmark = pytest.mark.real
LARGE = os.urandom(3 * CHUNK + 7)


def bucket(url: str, **rest: str) -> Bucket:
    given = {"name": s3_server.BUCKET, "prefix": "some prefix/a+b/", **rest}
    secret = given.pop("secret", s3_server.SECRET)
    return Bucket(url, given["name"], given["prefix"], Credentials(s3_server.ACCESS, secret, "eu-central-1"))


@pytest.fixture(params=["files", "s3"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ResultPlace]:
    if request.param == "files":
        yield ResultFiles(tmp_path / "results", sync=True)
        return
    async with s3_server.s3_server() as server:
        opened = S3Results(bucket(server.url))
        yield opened
        await opened.close()


async def read(place: ResultPlace, name: str) -> bytes:
    return b"".join([chunk async for chunk in place.stream(name)])


async def names(place: ResultPlace, age_s: float) -> set[ResultAt]:
    return {each async for page in place.old(age_s) for each in page}


async def test_results_are_written_read_listed_and_deleted(place: ResultPlace) -> None:
    made = [new_name(f"{number}f3c", 1) for number in range(5)]
    for name in made:
        await place.write(name, LARGE)
    assert await read(place, made[3]) == LARGE
    assert await names(place, -60) == {ResultAt(place.kind, len(LARGE), name) for name in made}
    assert await names(place, 60) == set(), "they are new"
    await place.delete([*made[1:], "gone already"])
    with pytest.raises(ResultMissing, match="RESULTS_"):
        await read(place, made[3])
    assert await read(place, made[0]) == LARGE


def test_place_of_a_result_is_read_back() -> None:
    at = ResultAt("s3", 12, new_name("0f3c", 2))
    assert ResultAt.read(str(at)) == at


async def test_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where the folder should be")
    with pytest.raises(ResultError, match=r"RESULTS_DIR\): "):
        await ResultFiles(tmp_path / "results", sync=False).write("a.1.b", b"x")
    files = ResultFiles(tmp_path / "other", sync=False)
    (tmp_path / "other" / "a." / "a.1.b").mkdir(parents=True)
    with pytest.raises(ResultError):
        await files.write("a.1.b", b"x")
    assert [each.name for each in (tmp_path / "other" / "a.").iterdir()] == ["a.1.b"]


async def test_wrong_secret_is_refused_and_a_store_that_is_away_is_told() -> None:
    async with s3_server.s3_server() as server:
        opened = S3Results(bucket(server.url, secret="wrong"))
        with pytest.raises(ResultError, match="403"):
            await opened.write("a.1.b", b"x")
        assert (server.refused, server.objects) == (1, {})
    with pytest.raises(ResultError, match="does not answer"):
        await opened.write("a.1.b", b"x")
    await opened.close()
