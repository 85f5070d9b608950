"""What the processes of one server have allocated, for tests that it stays flat. Knows /proc, no Triton."""

import re
from pathlib import Path

from trtkit.server.processes import stubs_of
from trtkit.server.triton_server import TritonServer

# Pages of files are left out: the kernel drops them and reads them again as it likes, and weights are such pages.
_ALLOCATED = ("RssAnon", "RssShmem", "VmSwap")


def memory_mib(server: TritonServer) -> dict[str, float]:
    """MiB of anonymous and shared memory, swapped out or not, of the server and of each model's process."""
    pids = {"server": server.pid} | {stub.model: stub.pid for stub in stubs_of(server.shm_prefix)}
    return {name: _allocated_mib(pid) for name, pid in pids.items()}


def _allocated_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status, flags=re.M))
    return sum(int(kib[name]) for name in _ALLOCATED) / 1024
