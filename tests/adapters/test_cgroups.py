"""Which pod a process belongs to: every form of cgroup path that a kubelet and its runtimes write."""

from pathlib import Path

import pytest

from gpu_orchestrator.adapters import cgroups

UID = "1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901"
OTHER = "ffffffff-5f60-7182-93a4-b5c6d7e8f901"
FLAT = UID.replace("-", "_")
HASH = "8c3a5f0d1e2b4c6d8e0f1a2b3c4d5e6f"
ID = "4f5e" * 16
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{FLAT}.slice"
V1 = "12:pids:{0}\n11:devices:{0}\n4:memory:{0}\n1:name=systemd:{0}\n"


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        pytest.param(f"0::{SLICE}/cri-containerd-{ID}.scope\n", UID, id="v2 systemd containerd burstable"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/"
            f"crio-{ID}.scope\n",
            UID,
            id="v2 systemd cri-o besteffort",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{FLAT}.slice/crio-{ID}.scope/container\n",
            UID,
            id="v2 systemd cri-o guaranteed, below its scope",
        ),
        pytest.param(f"0::{SLICE}/docker-{ID}.scope\n", UID, id="v2 systemd docker"),
        pytest.param(f"0::{SLICE}/crio-conmon-{ID}.scope\n", UID, id="v2 the monitor of cri-o"),
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{ID}\n", UID, id="v2 cgroupfs burstable"),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/{ID}\n", UID, id="v2 cgroupfs besteffort"),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}\n", UID, id="v2 cgroupfs guaranteed"),
        pytest.param(f"0::/kubepods/pod{UID}/crio-{ID}\n", UID, id="v2 cgroupfs cri-o"),
        pytest.param(f"0::/kubepods/pod{UID}\n", UID, id="the pod's own cgroup"),
        pytest.param(V1.format(f"/kubepods/burstable/pod{UID}/{ID}"), UID, id="v1 cgroupfs docker"),
        pytest.param(V1.format(f"{SLICE}/cri-containerd-{ID}.scope"), UID, id="v1 systemd containerd"),
        pytest.param(
            f"3:cpuset:/\n2:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}\n0::/\n",
            UID,
            id="v1 and v2 together",
        ),
        pytest.param(
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{FLAT}.slice:cri-containerd:{ID}\n",
            UID,
            id="systemd path given to a runtime with cgroupfs",
        ),
        pytest.param(
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{FLAT}.slice/cri-containerd-{ID}.scope\n",
            UID,
            id="kind, systemd",
        ),
        pytest.param(f"0::/kubelet/kubepods/burstable/pod{UID}/{ID}\n", UID, id="kind, cgroupfs"),
        pytest.param(f"4:memory:/site-1/kubepods/pod{UID}/{ID}\n", UID, id="below another root"),
        pytest.param(
            f"0::/../../kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/crio-{ID}.scope\n",
            UID,
            id="from a cgroup namespace, systemd",
        ),
        pytest.param(f"0::/../../besteffort/pod{UID}/{ID}\n", UID, id="from a cgroup namespace, cgroupfs"),
        pytest.param(f"0::/../../pod{UID}/{ID}\n", UID, id="from a cgroup namespace, guaranteed"),
        pytest.param(f"0::/kubepods/burstable/pod{HASH}/{ID}\n", HASH, id="static pod, cgroupfs"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice/"
            f"cri-containerd-{ID}.scope\n",
            HASH,
            id="static pod, systemd",
        ),
        pytest.param(f"0::{SLICE}/cri-containerd-{ID}.scope/pod{OTHER}\n", UID, id="forged below its own"),
        pytest.param(f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER}/{ID}\n", UID, id="a kubelet in a pod"),
        pytest.param(
            f"0::/../../pod{UID}/{ID}/kubepods/pod{OTHER}/{ID}\n", UID, id="forged, seen from a namespace"
        ),
        pytest.param("0::/\n", "", id="the root"),
        pytest.param("", "", id="nothing"),
        pytest.param("no cgroup at all", "", id="not a cgroup"),
        pytest.param("0::/user.slice/user-1000.slice/session-3.scope\n", "", id="a login"),
        pytest.param("0::/system.slice/nvidia-persistenced.service\n", "", id="a service of the host"),
        pytest.param(f"0::/user.slice/pod{UID}/x\n", "", id="not below kubepods"),
        pytest.param(f"0::/docker/{ID}\n", "", id="docker without Kubernetes"),
        pytest.param("0::/kubepods/burstable/podnot-a-uid/x\n", "", id="no UID"),
        pytest.param(f"0::/../{ID}\n", "", id="the reader's own pod"),
        pytest.param("0::/kubepods/" + "a/" * 5000, "", id="very long"),
    ],
)
def test_pod_of_a_cgroup(text: str, uid: str) -> None:
    assert cgroups.pod_of(text) == uid


def test_pod_of_a_process_is_read_below_a_root(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "42"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    assert cgroups.read(42, tmp_path) == UID
    assert cgroups.read(43, tmp_path) == "", "it has ended"
    (tmp_path / "proc" / "self").mkdir()
    assert cgroups.pods(tmp_path) == {UID}
    assert cgroups.pods(tmp_path / "nothing") == set()


def test_this_process_is_in_no_pod_of_a_cluster_that_is_not_there() -> None:
    assert cgroups.read(2**22 + 1) == ""
