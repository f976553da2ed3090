"""The keys that a server starts with: generated once, stored as hashes, replaced by configured ones."""

import json
from pathlib import Path

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.apps.manager.access.keys import Keys
from gpu_orchestrator.cli import host

OWN, TOKEN = "o" * 32, "t" * 32


def begin(folder: Path, **given: str) -> tuple[Keys, host.Secrets]:
    chosen = settings.load({}, folder / "none", data_dir=str(folder), **given)
    known, secrets = host._keys(chosen, folder)
    client = json.dumps({"url": "", "key": secrets.api_key})
    (folder / host.CLIENT).write_text(client)
    return Keys(known), secrets


def admits(keys: Keys, secret: str) -> bool:
    try:
        return keys.find(f"Bearer {secret}").configured
    except Exception:
        return False


def test_keys_are_made_once_and_kept_as_hashes(tmp_path: Path) -> None:
    first, made = begin(tmp_path)
    again, kept = begin(tmp_path)
    assert (made.fresh, kept.fresh) == (True, False)
    assert (made.api_key, made.worker_token) == (kept.api_key, kept.worker_token)
    for keys in (first, again):
        keys.find(f"Bearer {made.api_key}").demand("admin")
        assert keys.find(f"Bearer {made.worker_token}").scopes == {"worker"}
    assert made.api_key not in (tmp_path / "keys.json").read_text()


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


def test_lost_token_file_does_not_lock_out_the_local_worker(tmp_path: Path) -> None:
    _, made = begin(tmp_path)
    (tmp_path / host.TOKEN).unlink()
    keys, secrets = begin(tmp_path)
    assert admits(keys, made.worker_token), "workers elsewhere still have it"
    assert admits(keys, secrets.worker_token)


def test_no_key_is_generated_if_both_are_configured(tmp_path: Path) -> None:
    keys, secrets = begin(tmp_path, api_key=OWN, worker_token=TOKEN)
    assert admits(keys, OWN)
    assert admits(keys, TOKEN)
    assert not secrets.fresh
    assert not (tmp_path / "keys.json").exists()
