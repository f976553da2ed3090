"""Folders that others wrote to, removed without trust in what is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_orchestrator.adapters import foreign_files

NEST = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(3000):
    os.mkdir("d")
    open("f", "w").close()
    os.chdir("d")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def test_folders_in_one_another_beyond_any_stack_are_removed(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", NEST, str(folder)], check=True)
    foreign_files.remove(folder)
    assert not folder.exists()


def test_links_are_removed_and_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (folder / "to-folder").symlink_to(outside)
    (folder / "inner").mkdir()
    (folder / "inner" / "up").symlink_to("../..")
    os.link(outside / "kept", folder / "inner" / "hard")
    os.mkfifo(folder / "pipe")
    foreign_files.empty(folder)
    assert list(folder.iterdir()) == []
    assert list(outside.iterdir()) == [outside / "kept"]


def test_large_folder_is_removed_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_files, "BATCH", 3)
    (folder / "inner" / "more").mkdir(parents=True)
    for number in range(10):
        (folder / "inner" / "more" / str(number)).touch()
        (folder / "inner" / f"folder-{number}").mkdir()
    foreign_files.empty(folder)
    assert list(folder.iterdir()) == []


def test_folder_that_is_filled_all_the_time_is_given_up(folder: Path) -> None:
    for number in range(20):
        (folder / str(number)).touch()
    with pytest.raises(OSError, match="is not empty after 10 removals"):
        foreign_files.empty(folder, most=10)


def test_folder_that_is_not_there_is_removed(folder: Path) -> None:
    foreign_files.remove(folder / "nowhere")
