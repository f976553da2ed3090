"""Secrets in the store: sealed with a key from a file, opened only with it and only in their place."""

import stat
from pathlib import Path

import pytest

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.adapters.seal import CannotOpen, Seal
from gpu_orchestrator.adapters.settings import BadSettings, Settings

OLD, NEW = "0" * 64, "1" * 64


def chosen(tmp_path: Path, text: str | None = None) -> Settings:
    given = {}
    if text is not None:
        (tmp_path / "key").write_text(text)
        given = {"secrets_key_file": str(tmp_path / "key")}
    return settings.load({}, tmp_path / "none", data_dir=str(tmp_path / "data"), **given)


def test_sealed_secret_shows_nothing_and_opens_in_its_place(tmp_path: Path) -> None:
    seal = Seal.of(chosen(tmp_path, OLD))
    sealed = seal.close("hush", place="callback:1")
    assert "hush" not in sealed
    assert sealed != seal.close("hush", place="callback:1"), "no two seals are alike"
    assert seal.open(sealed, place="callback:1") == "hush"
    with pytest.raises(CannotOpen, match="the secret of callback:2 is not what was sealed for it"):
        seal.open(sealed, place="callback:2")


def test_changed_seal_does_not_open(tmp_path: Path) -> None:
    seal = Seal.of(chosen(tmp_path, OLD))
    head, _, text = seal.close("hush", place="p").rpartition(":")
    changed = ("A" if text[20] != "A" else "B").join((text[:20], text[21:]))
    with pytest.raises(CannotOpen):
        seal.open(f"{head}:{changed}", place="p")


@pytest.mark.parametrize("sealed", ["", "hush", "sealed:x", "sealed:00000000:!!", "sealed:a:b:c"])
def test_text_that_is_not_a_seal_does_not_open(tmp_path: Path, sealed: str) -> None:
    with pytest.raises(CannotOpen):
        Seal.of(chosen(tmp_path, OLD)).open(sealed, place="p")


def test_new_key_seals_and_the_old_one_still_opens(tmp_path: Path) -> None:
    before = Seal.of(chosen(tmp_path, OLD)).close("hush", place="p")
    seal = Seal.of(chosen(tmp_path, f"{NEW}\n{OLD}\n"))
    assert seal.open(before, place="p") == "hush"
    after = seal.close("hush", place="p")
    with pytest.raises(CannotOpen, match="give every server of a store the same SECRETS_KEY_FILE"):
        Seal.of(chosen(tmp_path, OLD)).open(after, place="p")


def test_private_key_is_made_and_kept_without_a_setting(tmp_path: Path) -> None:
    sealed = Seal.of(chosen(tmp_path)).close("hush", place="p")
    assert Seal.of(chosen(tmp_path)).open(sealed, place="p") == "hush"
    (made,) = (tmp_path / "data").iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "short", "0" * 63, f"{OLD}\nshort"])
def test_bad_key_file_is_reported(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSettings, match=r"SECRETS_KEY_FILE=.* cannot be used: it does not hold keys of 64"):
        Seal.of(chosen(tmp_path, text))


def test_missing_key_file_is_reported(tmp_path: Path) -> None:
    missing = settings.load({"SECRETS_KEY_FILE": str(tmp_path / "x")}, tmp_path / "none")
    with pytest.raises(BadSettings, match="cannot be read: no such file"):
        Seal.of(missing)
