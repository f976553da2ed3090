"""What several API processes show together."""

from pathlib import Path

from gpu_orchestrator.apps.manager.siblings import Place, Siblings, summed

ONE = b"# HELP watchers Clients\n# TYPE watchers gauge\nwatchers 2.0\n"
TWO = ONE.replace(b"2.0", b"3.0") + b'# HELP q Q\n# TYPE q gauge\nq{priority="5"} 7.0\n'


def test_gauges_of_all_processes_are_added() -> None:
    assert summed([ONE, b"", TWO]) == TWO.replace(b"3.0", b"5.0")


async def test_scrape_shows_all_processes_that_answer(tmp_path: Path) -> None:
    """The third of three processes does not run, and only one leads."""

    async def first() -> tuple[bytes, bytes]:
        return ONE, b""

    async def second() -> tuple[bytes, bytes]:
        return TWO, b"gpu_alert 1.0\n"

    one = Siblings(Place(1, 3, str(tmp_path), ""), first)
    two = Siblings(Place(2, 3, str(tmp_path), ""), second)
    async with one.answering(), two.answering():
        shown = await one.metrics()
        assert shown == await two.metrics()
    assert b"watchers 5.0\n" in shown
    assert shown.count(b"gpu_alert 1.0\n") == 1
    assert (await one.metrics()).startswith(ONE), "the others have ended"
