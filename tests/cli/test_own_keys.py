"""The keys that a server starts with: made once, kept as hashes, replaced by configured ones, never lost."""

import json
from pathlib import Path

import pytest

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.adapters.private_files import CLIENT
from gpu_orchestrator.adapters.private_files import TOKEN as WORKER_TOKEN
from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.apps.manager.access.keys import Keys
from gpu_orchestrator.cli import own_keys
from gpu_orchestrator.cli.own_keys import Secrets

OWN, TOKEN = "o" * 32, "t" * 32


def chosen_in(folder: Path, **given: str) -> Settings:
    return settings.load({}, folder / "none", data_dir=str(folder), **given)


def begin(folder: Path, **given: str) -> tuple[Keys, Secrets]:
    chosen = chosen_in(folder, **given)
    begun = own_keys.begin(chosen, folder)
    own_keys.keep(begun, chosen, "http://127.0.0.1:8000")
    return Keys(begun.known), begun.secrets


def admits(keys: Keys, secret: str) -> bool:
    try:
        return keys.find(f"Bearer {secret}").configured
    except Exception:
        return False


def test_keys_are_made_once_and_kept_as_hashes(tmp_path: Path) -> None:
    first, made = begin(tmp_path)
    again, kept = begin(tmp_path)
    assert (made.fresh, made.further, kept.fresh) == (True, False, False)
    assert (made.api_key, made.worker_token) == (kept.api_key, kept.worker_token)
    for keys in (first, again):
        keys.find(f"Bearer {made.api_key}").demand("admin")
        assert keys.find(f"Bearer {made.worker_token}").scopes == {"worker"}
    assert made.api_key not in (tmp_path / own_keys.HASHES).read_text()
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in ("client.json", "worker-token"))


def test_nothing_is_written_before_the_server_runs(tmp_path: Path) -> None:
    own_keys.begin(chosen_in(tmp_path), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_configured_keys_replace_generated_ones(tmp_path: Path) -> None:
    _, made = begin(tmp_path)
    keys, _ = begin(tmp_path, api_key=OWN)
    assert admits(keys, OWN)
    assert not admits(keys, made.api_key), "the old key is no longer accepted"
    assert admits(keys, made.worker_token)
    keys, _ = begin(tmp_path, worker_token=TOKEN)
    assert admits(keys, TOKEN)
    assert not admits(keys, made.worker_token)


def test_configured_key_is_dropped_with_its_setting(tmp_path: Path) -> None:
    begin(tmp_path, api_key=OWN)
    keys, secrets = begin(tmp_path)
    assert not admits(keys, OWN), "though this machine's client still remembers it"
    assert secrets.fresh
    assert admits(keys, secrets.api_key)


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(None, id="removed, or a restored backup"),
        pytest.param('{"url": "http://127.0.0.1:8000", "key": "", "ca": ""}', id="without a key"),
        pytest.param('{"url": "http:', id="cut off"),
        pytest.param("", id="empty"),
        pytest.param('{"key": "of another server"}', id="of another server"),
    ],
)
def test_client_without_a_working_key_gets_a_new_one(tmp_path: Path, client: str | None) -> None:
    _, made = begin(tmp_path)
    if client is None:
        (tmp_path / CLIENT).unlink()
    else:
        (tmp_path / CLIENT).write_text(client)
    keys, secrets = begin(tmp_path)
    assert (secrets.fresh, secrets.further) == (True, True)
    assert admits(keys, secrets.api_key)
    assert json.loads((tmp_path / CLIENT).read_text())["key"] == secrets.api_key
    assert admits(keys, made.api_key), "clients elsewhere may have it"
    assert begin(tmp_path)[1].api_key == secrets.api_key, "and from then on it is kept"


def test_lost_token_file_does_not_lock_out_the_local_worker(tmp_path: Path) -> None:
    _, made = begin(tmp_path)
    (tmp_path / WORKER_TOKEN).unlink()
    keys, secrets = begin(tmp_path)
    assert admits(keys, made.worker_token), "workers elsewhere still have it"
    assert admits(keys, secrets.worker_token)
    assert (tmp_path / WORKER_TOKEN).read_text() == secrets.worker_token


def test_no_key_is_generated_if_both_are_configured(tmp_path: Path) -> None:
    keys, secrets = begin(tmp_path, api_key=OWN, worker_token=TOKEN)
    assert admits(keys, OWN)
    assert admits(keys, TOKEN)
    assert not secrets.fresh
    assert not (tmp_path / own_keys.HASHES).exists()


def test_damaged_hashes_are_reported_with_what_to_do(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / own_keys.HASHES).write_text('[["abc"')
    with pytest.raises(BadSettings, match=r"keys\.json cannot be read as a list of keys .*or remove it"):
        begin(tmp_path)
