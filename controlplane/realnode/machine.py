"""Whether this machine can run a real node. Tests ask before they start one, and `make tools` before it
builds one's parts."""

import os
import shutil
import subprocess
import sys
import uuid

from controlplane import watchdog
from controlplane.errors import ControlPlaneError
from controlplane.realnode import cgroups, network, runc

PROGRAMS = ("mount", "unshare", "nsenter")


def obstacle() -> str | None:
    """Return why no real node can run here, or None if it can."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root"
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        return f"not on PATH: {', '.join(missing)}"
    if not runc.is_available():
        return "neither runc nor apt-get, from which to get it, is on PATH"
    return _forbidden()


def _forbidden() -> str | None:
    """Try what a container's sandbox often forbids, and undo it at once."""
    mark = uuid.uuid4().hex
    if subprocess.run(["unshare", "--mount", "mount", "--make-rslave", "/"], capture_output=True).returncode:
        return "it may not make a mount namespace"
    try:
        cgroups.make(mark)
        network.Network.make(mark)
    except (OSError, ControlPlaneError) as error:
        return f"it may not make cgroups and a network bridge: {error}"
    finally:
        watchdog.end_all(mark)
    return None
