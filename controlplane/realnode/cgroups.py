"""The cgroup under which the kubelet makes those of its pods. The watchdog removes it by its name."""

from pathlib import Path

from controlplane import watchdog

ROOT = Path(watchdog.CGROUPS)
WANTED = {"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}


def make(mark: str) -> str:
    """Make the cgroup in every hierarchy, and return its path as the kubelet and /proc show it."""
    name = watchdog.cgroup_name(mark)
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir()
    if _is_unified():
        _hand_down(ROOT)
        _hand_down(ROOT / name)
    return f"/{name}"


def _hierarchies() -> list[Path]:
    if _is_unified():
        return [ROOT]
    return [path for path in ROOT.iterdir() if path.is_dir() and (path / "cgroup.procs").exists()]


def _is_unified() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _hand_down(folder: Path) -> None:
    """Let the cgroups below use the controllers that the kubelet wants."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        if controller in WANTED:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
