"""A bare HTTP client that reads a kubeconfig: the component behind the proxy in the proxy's own tests."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml


@contextlib.asynccontextmanager
async def component(kubeconfig: Path) -> AsyncIterator[aiohttp.ClientSession]:
    cluster, user = _read(kubeconfig)
    tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
    async with aiohttp.ClientSession(
        cluster["server"],
        headers={"Authorization": f"Bearer {user['token']}"},
        connector=aiohttp.TCPConnector(ssl=tls, limit=0),
        timeout=aiohttp.ClientTimeout(total=60),
    ) as session:
        yield session


def _read(kubeconfig: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    config = yaml.safe_load(kubeconfig.read_text())
    return config["clusters"][0]["cluster"], config["users"][0]["user"]
