"""Machine: the facts of one machine and what they allow. The one place that runs every probe."""

import platform
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtkit.doctor import gpu, host, installed
from trtkit.doctor.allows import Allowance, allowances
from trtkit.doctor.facts import MachineFacts


class Machine(MachineFacts):
    """MachineFacts with conclusions."""

    @property
    def allows(self) -> dict[str, Allowance]:
        """ "reference", "serve", "engine" and "llmapi": possible or not, with reason and fix."""
        return allowances(self)

    @property
    def sm(self) -> int | None:
        """The lowest SM of the GPUs here, the one that an engine must run on; None without a GPU."""
        return min((device.sm for device in self.gpu.devices), default=None) if self.gpu else None


def inspect_machine(root: Path = Path("/"), folder: Path = Path(), search_path: str | None = None) -> Machine:
    """Run every probe; takes well below a second and imports none of the packages it reports.

    `root` holds proc, sys and dev; `folder` is where files will be written; `search_path` replaces PATH.
    """
    packages = installed.installed_packages()
    nvidia_smi = shutil.which("nvidia-smi", path=search_path)
    trtllm_build = shutil.which("trtllm-build", path=search_path)
    return Machine(
        python=platform.python_version(),
        system=platform.system(),
        architecture=platform.machine(),
        libc=host.libc_version(),
        cpus=host.usable_cpus(root),
        packages=packages,
        gpu=gpu.read_gpu(Path(nvidia_smi) if nvidia_smi else None, root),
        triton=installed.find_triton(packages, root),
        trtllm_build=Path(trtllm_build) if trtllm_build else None,
        memory=host.read_memory(root),
        shared_memory=host.read_shared_memory(root),
        limits=host.read_limits(),
        container=host.container_name(root),
        free_disk_bytes=host.free_disk_bytes(folder),
        cuda_toolkit=gpu.read_cuda_toolkit(root),
    )


def machine_record(machine: Machine) -> dict[str, Any]:
    """The `--json` form: plain values only."""
    record = _plain(asdict(machine))
    assert isinstance(record, dict)
    record["allows"] = {name: asdict(allowance) for name, allowance in machine.allows.items()}
    return {"schema": 1, **record}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
