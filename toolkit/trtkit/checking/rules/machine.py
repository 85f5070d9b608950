"""Rules about a machine, and about a build on a machine. Knows facts that the doctor found; probes nothing."""

from collections.abc import Iterable

from trtkit.checking.rule import Hit, Rule, hit
from trtkit.checking.subjects.build import BuiltFor
from trtkit.doctor import Machine
from trtkit.engines.placement import place
from trtkit.engines.release import find_release
from trtkit.engines.same_release import same_release

MIN_OPEN_FILES = 4096
COMFORTABLE_SHARED_BYTES = 512 << 20
_ENGINE_RUNTIMES = ("engine", "llmapi")


def _few_files(machine: Machine) -> Iterable[Hit]:
    allowed = machine.limits.open_files
    if allowed is not None and allowed < MIN_OPEN_FILES:
        yield hit("ulimit", allowed=allowed, least=MIN_OPEN_FILES)


def _small_shared_memory(machine: Machine) -> Iterable[Hit]:
    shared = machine.shared_memory
    if shared is not None and shared.size_bytes < COMFORTABLE_SHARED_BYTES:
        yield hit("/dev/shm", size=shared.size_bytes >> 20)


def _locked_memory(machine: Machine) -> Iterable[Hit]:
    if machine.gpu is not None and machine.limits.locked_memory_bytes is not None:
        yield hit("ulimit", size=machine.limits.locked_memory_bytes >> 20)


def _numa(machine: Machine) -> Iterable[Hit]:
    if machine.memory.numa_nodes > 1:
        yield hit("", nodes=machine.memory.numa_nodes)


def _unserved(built: BuiltFor) -> Iterable[Hit]:
    if built.backend == "reference":
        for name in ("reference", "serve"):
            allowance = built.machine.allows[name]
            if not allowance.possible:
                yield hit("backend", backend=built.backend, reason=allowance.reason, fix=allowance.fix)


def _no_runtime(built: BuiltFor) -> Iterable[Hit]:
    if built.backend in _ENGINE_RUNTIMES and built.machine.tensorrt_llm is None:
        yield hit("backend", backend=built.backend, version=built.version)


def _other_version(built: BuiltFor) -> Iterable[Hit]:
    runtime = built.machine.tensorrt_llm
    if built.backend in _ENGINE_RUNTIMES and runtime is not None and not same_release(runtime, built.version):
        why = "an engine loads in its own only" if built.backend == "engine" else "its YAML has the keys of one release"
        yield hit("tensorrt_llm", built=built.version, runtime=runtime, why=why)


def _other_engine(built: BuiltFor) -> Iterable[Hit]:
    for role, version in built.engine_versions.items():
        if not same_release(version, built.version):
            yield hit("tensorrt_llm", role=role, engine=version, built=built.version)


def _other_sm(built: BuiltFor) -> Iterable[Hit]:
    here = sorted({device.sm for device in built.machine.gpu.devices}) if built.machine.gpu else []
    if built.backend == "engine" and built.sm is not None and here and built.sm not in here:
        yield hit("gpu", built=built.sm, here=" and ".join(map(str, here)))


def _too_few_gpus(built: BuiltFor) -> Iterable[Hit]:
    here = len(built.machine.gpu.devices) if built.machine.gpu else 0
    target = built.build.config.target
    # The LLM API runs the draft on the target's ranks.
    own = target.tensor_parallel * target.pipeline_parallel
    needed = place(built.build.config).num_gpus if built.backend == "engine" else own
    if built.backend in _ENGINE_RUNTIMES and 0 < here < needed:
        yield hit("gpu", needed=needed, here=here)


def _old_driver(machine: Machine) -> Iterable[Hit]:
    release = find_release(machine.tensorrt_llm) if machine.tensorrt_llm else None
    able = machine.gpu.cuda if machine.gpu else None
    if release is not None and release.cuda and able and _numbers(able) < _numbers(release.cuda)[:2]:
        yield hit("driver", able=able, needs=release.cuda, version=release.version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _known_bugs(machine: Machine) -> Iterable[Hit]:
    release = find_release(machine.tensorrt_llm) if machine.tensorrt_llm else None
    for bug in release.known_bugs if release else ():
        yield hit("tensorrt-llm", version=machine.tensorrt_llm, what=bug.what, issue=bug.issue)


MACHINE_RULES: tuple[Rule[Machine], ...] = (
    Rule(
        code="HOST-FILES",
        severity="warning",
        looks_at="machine",
        when="a process may open fewer than 4096 files",
        cause="a process may open {allowed} files; a server with many streams needs more than {least}",
        fix="ulimit -n 65536, or --ulimit nofile=65536 for a container",
        source="one descriptor per connection and per shared-memory region",
        find=_few_files,
        example=hit("ulimit", allowed=1024, least=4096),
    ),
    Rule(
        code="HOST-SHM",
        severity="warning",
        looks_at="machine",
        when="/dev/shm is smaller than 512 MiB",
        cause="/dev/shm has {size} MiB; Triton's Python models grow into it and fail when it is full",
        fix="start the container with --shm-size=1g",
        source="tried with Triton 2.51",
        find=_small_shared_memory,
        example=hit("/dev/shm", size=64),
    ),
    Rule(
        code="HOST-MEMLOCK",
        severity="note",
        looks_at="machine",
        when="there is a GPU, and locked memory is limited",
        cause="a process may lock {size} MiB; pinned host buffers for KV offload need more",
        fix="ulimit -l unlimited, or --ulimit memlock=-1 for a container",
        source="NVIDIA's container start-up advice",
        find=_locked_memory,
        example=hit("ulimit", size=8),
    ),
    Rule(
        code="HOST-DRIVER",
        severity="warning",
        looks_at="machine",
        when="the driver's CUDA version is older than the one the installed TensorRT-LLM was built with",
        cause="the driver runs CUDA {able}, TensorRT-LLM {version} was built with {needs}",
        fix="update the driver; on data-center GPUs NVIDIA's images bring a compatibility library instead",
        source="release notes: CUDA of each release",
        find=_old_driver,
        example=hit("driver", able="12.4", needs="13.1", version="1.2.1"),
    ),
    Rule(
        code="HOST-BUG",
        severity="note",
        looks_at="machine",
        when="the installed TensorRT-LLM has a defect that trtkit knows of",
        cause="TensorRT-LLM {version}: {what} ({issue})",
        fix="nothing to do unless your deployment does that; else use another release",
        source="the issues named",
        find=_known_bugs,
        example=hit(
            "tensorrt-llm",
            version="1.1.0",
            what="cancelling a request that asks for log probabilities crashes",
            issue="NVIDIA/TensorRT-LLM#10810",
        ),
    ),
    Rule(
        code="HOST-NUMA",
        severity="note",
        looks_at="machine",
        when="the machine has several NUMA nodes",
        cause="the machine has {nodes} NUMA nodes; the reference engine is fastest on one of them",
        fix="numactl --cpunodebind=0 --membind=0 trtkit serve BUILD",
        source="memory bandwidth across nodes",
        find=_numa,
        example=hit("", nodes=2),
    ),
)
BUILT_RULES: tuple[Rule[BuiltFor], ...] = (
    Rule(
        code="RUN-SERVE",
        severity="error",
        looks_at="build",
        when="the build is for the reference backend, and this machine lacks what that needs",
        cause="this build is for backend {backend}, and {reason}",
        fix="{fix}",
        source="trtkit doctor",
        find=_unserved,
        example=hit(
            "backend",
            backend="reference",
            reason="numpy 2.1.0: the wheel's stub reads wrong values from numpy 2 arrays",
            fix='pip install "numpy<2"',
        ),
    ),
    Rule(
        code="RUN-RUNTIME",
        severity="error",
        looks_at="build",
        when="the build needs TensorRT-LLM, and this machine has none",
        cause="this build is for backend {backend}, and TensorRT-LLM is not installed here",
        fix="run it in an NVIDIA Triton image with TensorRT-LLM {version}",
        source="trtkit doctor",
        find=_no_runtime,
        example=hit("backend", backend="engine", version="1.2.1"),
    ),
    Rule(
        code="RUN-VERSION",
        severity="error",
        looks_at="build",
        when="the runtime is another TensorRT-LLM than the one that the build is for",
        cause="the build is for TensorRT-LLM {built}, this machine has {runtime}; {why}",
        fix="use the image with TensorRT-LLM {built}, or build again here",
        source="tensorrtllm_backend issues #190, #194, #285; TensorRT-LLM issue #1803",
        find=_other_version,
        example=hit("tensorrt_llm", built="0.17.0", runtime="0.19.0", why="an engine loads in its own only"),
    ),
    Rule(
        code="RUN-ENGINE",
        severity="error",
        looks_at="build",
        when="an engine in the build directory is of another TensorRT-LLM than the build",
        cause="the engine of the {role} is of TensorRT-LLM {engine}, the build is for {built}: it was put there since",
        fix="run `trtkit build` again",
        source="tensorrtllm_backend issue #285; TensorRT-LLM issue #1803",
        find=_other_engine,
        example=hit("tensorrt_llm", role="target", engine="1.0.0", built="1.2.1"),
    ),
    Rule(
        code="RUN-SM",
        severity="error",
        looks_at="build",
        when="the GPUs have another SM than the one that the engines were built for",
        cause="the engines are for SM {built}, this machine has SM {here}",
        fix="build on the GPU that serves",
        source="llama_index issue #12318: incompatible device",
        find=_other_sm,
        example=hit("gpu", built=90, here="89"),
    ),
    Rule(
        code="RUN-GPUS",
        severity="error",
        looks_at="build",
        when="the build runs on more GPUs than this machine has",
        cause="the build was placed on {needed} GPUs, this machine has {here}",
        fix="serve it on a machine with {needed} GPUs, or build with less parallelism or a smaller gpu.count",
        source="mapping.py: one GPU per rank",
        find=_too_few_gpus,
        example=hit("gpu", needed=4, here=1),
    ),
)
