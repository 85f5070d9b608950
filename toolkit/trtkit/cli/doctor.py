"""`trtkit doctor`."""

from pathlib import Path

import click
from rich.console import Group
from rich.table import Table

from trtkit.checking.folder_checks import check_machine, open_whole_build
from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output
from trtkit.doctor.facts import TritonInstall
from trtkit.doctor.machine import Machine, inspect_machine, machine_record
from trtkit.engines.cache import CacheSize, cache_size
from trtkit.findings import Finding

_GIB = 1 << 30


@click.command()
@click.argument("build", required=False, type=click.Path(path_type=Path))
@with_output
def command(output: Output, build: Path | None) -> int:
    """Say what this machine can and cannot do; with BUILD, whether it can serve that build directory.

    Exits with 3 when the machine does not fit BUILD.
    """
    machine = inspect_machine()
    findings = check_machine(machine, open_whole_build(build) if build else None)
    size = cache_size(cache_directory() / "engines")
    record = machine_record(machine) | {
        "findings": [finding.as_dict() for finding in findings],
        "engine_cache": {"folder": str(size.folder), "engines": size.num_engines, "bytes": size.bytes},
    }
    output.result(record, render(machine, findings, size))
    return 3 if any(finding.severity == "error" for finding in findings) else 0


def render(machine: Machine, findings: list[Finding], engines: CacheSize) -> Group:
    """Three tables: what is there, what that allows, what is amiss."""
    facts = Table("", "", box=None, show_header=False, pad_edge=False)
    for name, text in [*_facts(machine), ("engine cache", _cached(engines))]:
        facts.add_row(name, text.replace("[", "\\["))
    allowed = Table("", "", "", box=None, show_header=False, pad_edge=False)
    for name, allowance in machine.allows.items():
        mark = "[green]yes" if allowance.possible else "[red]no"
        allowed.add_row(name, mark, allowance.reason + (f"\nfix: {allowance.fix}" if allowance.fix else ""))
    amiss = Table("", "", "", box=None, show_header=False, pad_edge=False)
    for finding in findings:
        amiss.add_row(finding.severity, finding.code, f"{finding.cause}\nfix: {finding.fix}".replace("[", "\\["))
    return Group(facts, "", allowed, "", amiss) if findings else Group(facts, "", allowed)


def _facts(machine: Machine) -> list[tuple[str, str]]:
    """The lines of the first table."""
    memory, shared, gpu, triton = machine.memory, machine.shared_memory, machine.gpu, machine.triton
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items() if version)
    names = ", ".join(f"{d.name} (SM {d.sm}, {d.memory_bytes / _GIB:.0f} GiB)" for d in gpu.devices) if gpu else ""
    cuda = f", CUDA {gpu.cuda}" if gpu and gpu.cuda else ""
    limits = machine.limits
    return [
        ("python", f"{machine.python}, {machine.system} {machine.architecture}, {machine.libc}"),
        ("packages", packages),
        ("gpu", f"driver {gpu.version}{cuda}: {names or 'no GPU named'}" if gpu else "no NVIDIA driver"),
        ("cuda toolkit", machine.cuda_toolkit or "none"),
        ("triton", _triton(triton) if triton else "none"),
        ("trtllm-build", str(machine.trtllm_build or "not on PATH")),
        ("cores", f"{machine.cpus}, {memory.numa_nodes} NUMA node{'s' if memory.numa_nodes != 1 else ''}"),
        ("memory", f"{memory.available_bytes / _GIB:.1f} of {memory.limit_bytes / _GIB:.1f} GiB free"),
        (
            "/dev/shm",
            f"{shared.free_bytes / _GIB:.1f} of {shared.size_bytes / _GIB:.1f} GiB free" if shared else "none",
        ),
        ("limits", f"open files {limits.open_files or 'unlimited'}, locked {_size(limits.locked_memory_bytes)}"),
        ("container", machine.container or "none"),
        ("disk", f"{machine.free_disk_bytes / _GIB:.1f} GiB free"),
    ]


def _triton(triton: TritonInstall) -> str:
    """Version, kind and place of a server, and the Python of its models."""
    stub = f", Python stub for {triton.stub_python}" if triton.stub_python else ""
    return f"{triton.version or 'unknown version'} ({triton.kind}){stub} {triton.binary}"


def _cached(size: CacheSize) -> str:
    """Place and size; nothing is evicted, so it says what may be deleted."""
    if not size.num_engines:
        return f"empty ({size.folder})"
    return f"{size.num_engines} engines, {size.bytes / _GIB:.1f} GiB; may be deleted: {size.folder}"


def _size(number_bytes: int | None) -> str:
    return "unlimited" if number_bytes is None else f"{number_bytes / (1 << 20):.0f} MiB"
