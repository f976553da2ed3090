"""Packages that have the same bytes each time that a commit is packed, and checksums of them."""

# ruff: noqa: TID251 - a script, outside the pure packages

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

SUMS = "SHA256SUMS"


def repack(package: Path, moment: int) -> None:
    """Write a .tgz again with this time, sorted and without owners. Helm writes the time of packing into each
    file."""
    with tarfile.open(package) as read:
        files = {each.name: read.extractfile(each) for each in read.getmembers() if each.isfile()}
        content = {name: file.read() for name, file in files.items() if file}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as written:
        for name in sorted(
            content, key=lambda name: (name.count("/") > 1, name)
        ):  # Chart.yaml is near the top
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(content[name]), moment, 0o644
            written.addfile(info, io.BytesIO(content[name]))
    package.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=moment))


def write_sums(folder: Path) -> Path:
    """Write the checksums of all files there, as `sha256sum --check` reads them."""
    files = sorted(each for each in folder.iterdir() if each.is_file() and each.name != SUMS)
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files]
    (folder / SUMS).write_text("".join(lines))
    return folder / SUMS
