"""Reads memory, limits, cores and container of the host from /proc and /sys. Knows no GPU and no package."""

import os
import platform
import resource
import shutil
from pathlib import Path

from trtkit.doctor.facts import Limits, Memory, SharedMemory

_KIB = 1024
# cgroup v1 writes "no limit" as the largest multiple of a page below 2**63.
_UNLIMITED_BYTES = 1 << 60


def read_memory(root: Path) -> Memory:
    """Memory below `root` ("/" outside of tests): /proc/meminfo, the cgroup limit, the NUMA nodes."""
    kib = _meminfo(root)
    total = kib.get("MemTotal", 0) * _KIB
    available = kib.get("MemAvailable", kib.get("MemFree", 0)) * _KIB
    limit, used = _cgroup_memory(root)
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or 1
    if limit is None or limit >= total:
        return Memory(total, available, total, nodes)
    return Memory(total, min(available, max(0, limit - used)), limit, nodes)


def read_shared_memory(root: Path) -> SharedMemory | None:
    """Size of /dev/shm, or None when there is none."""
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return SharedMemory(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def read_limits() -> Limits:
    """Soft limits of this process."""
    return Limits(
        open_files=_soft(resource.RLIMIT_NOFILE),
        locked_memory_bytes=_soft(resource.RLIMIT_MEMLOCK),
        stack_bytes=_soft(resource.RLIMIT_STACK),
    )


def usable_cpus(root: Path) -> int:
    """Cores this process may run on: its affinity, cut by the cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _read(root / "sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        return max(1, min(cores, -(-int(quota[0]) // int(quota[1]))))
    return cores


def container_name(root: Path) -> str | None:
    """The container runtime around this process, as far as its files tell."""
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    groups = _read(root / "proc/1/cgroup")
    known = ("kubepods", "docker", "containerd", "lxc")
    return next((name for name in known if name in groups), None)


def libc_version() -> str:
    """For example "glibc 2.36"."""
    return " ".join(platform.libc_ver()).strip() or "unknown"


def free_disk_bytes(folder: Path) -> int:
    """Bytes free on the file system of `folder`."""
    return shutil.disk_usage(folder).free


def _meminfo(root: Path) -> dict[str, int]:
    lines = (line.split() for line in _read(root / "proc/meminfo").splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) for parts in lines if len(parts) >= 2 and parts[1].isdigit()}


def _cgroup_memory(root: Path) -> tuple[int | None, int]:
    """The memory limit and use of this cgroup, version 2 or 1; (None, 0) without a limit."""
    for limit_file, used_file in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = _read(root / limit_file).strip(), _read(root / used_file).strip()
        if limit.isdigit() and int(limit) < _UNLIMITED_BYTES:
            return int(limit), int(used) if used.isdigit() else 0
    return None, 0


def _soft(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
