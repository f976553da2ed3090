"""How full a disk is, and what is said of it."""

from pathlib import Path

import pytest

from gpu_orchestrator.adapters import disk
from gpu_orchestrator.adapters.disk import Left
from gpu_orchestrator.api.units import MIB

HERE = Path("/data")


@pytest.mark.parametrize(
    ("free", "total", "said"),
    [
        pytest.param(64 * MIB, 10**12, "", id="room"),
        pytest.param(64 * MIB - 1, 10**12, "is nearly full: 67,108,863 bytes left", id="little"),
        pytest.param(16 * MIB - 1, 10**12, "is full: 16,777,215 bytes left", id="almost none"),
        pytest.param(0, 10**12, "is full: 0 bytes left", id="none"),
        pytest.param(2 * MIB, 32 * MIB, "", id="room on a small disk"),
        pytest.param(1 * MIB, 32 * MIB, "is nearly full: 1,048,576 bytes left", id="little on a small disk"),
    ],
)
def test_shortage_names_path_and_bytes(free: int, total: int, said: str) -> None:
    left = str(Left(HERE, free, total))
    assert left == (f"the disk of /data {said}; free some space there" if said else "")


def test_folder_that_does_not_exist_yet_is_measured_by_its_parent(tmp_path: Path) -> None:
    left = disk.left(tmp_path / "not" / "yet")
    assert left.total == disk.left(tmp_path).total > 0
