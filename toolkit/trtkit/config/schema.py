"""Every section of the build YAML, frozen. Knows what may be written, not whether it can be served."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Backend = Literal["auto", "engine", "llmapi", "reference"]
Dtype = Literal["float32", "float16", "bfloat16"]
KvDtype = Literal["auto", "fp8", "int8", "int4"]
Quantization = Literal[
    "none",
    "fp8",
    "fp8_rowwise",
    "int8_weight_only",
    "int4_weight_only",
    "int4_awq",
    "w4a8_awq",
    "int8_smoothquant",
    "nvfp4",
]


def _named(text: str) -> str:
    """A path or an id; the system can open neither nothing nor a name with a zero character."""
    if not text.strip():
        raise ValueError("is empty")
    if "\0" in text:
        raise ValueError("holds a zero character")
    return text


# Numbers that go into int32 fields of TensorRT-LLM and Triton, or count machines.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Ranks = Annotated[int, Field(ge=1, le=1024)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
BlockSize = Annotated[int, Field(ge=1, le=1024)]
Name = Annotated[str, AfterValidator(_named)]
Port = Annotated[int, Field(ge=1, le=65535)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A part of the YAML: immutable, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Gpu(Section):
    """The GPUs that the deployment will run on."""

    name: str
    """A name of the catalogue (`trtkit plan --list-gpus`), e.g. h100-sxm-80gb."""
    count: Ranks = 1
    """GPUs available to the deployment."""


class Model(Section):
    """One checkpoint and how it is converted; the target and the draft have the same shape."""

    checkpoint: Name
    """A folder (relative to the working directory), or a hub id such as meta-llama/Llama-3.2-1B-Instruct."""
    revision: Name | None = None
    """Branch, tag or commit of the hub id; null takes the default branch."""
    dtype: Dtype = "bfloat16"
    """Type of the weights that are not quantised, and of the computation."""
    quantization: Quantization = "none"
    """How the linear layers are stored."""
    tensor_parallel: Ranks = 1
    """Ranks that every layer is cut over."""
    pipeline_parallel: Ranks = 1
    """Stages that the layers are spread over."""
    expert_parallel: Ranks = 1
    """Ranks of tensor_parallel that share out the experts instead of cutting them; it divides tensor_parallel."""

    @model_validator(mode="after")
    def _experts_divide_the_tensor_ranks(self) -> Self:
        if self.tensor_parallel % self.expert_parallel:
            raise ValueError(
                f"expert_parallel {self.expert_parallel} does not divide tensor_parallel {self.tensor_parallel}"
            )
        return self


class NoSpeculation(Section):
    """The target generates alone."""

    kind: Literal["none"] = "none"
    """No draft."""


class DraftTarget(Section):
    """A small draft proposes tokens, the target verifies them."""

    kind: Literal["draft_target"]
    """Draft-target speculative decoding."""
    max_draft_len: Count = 5
    """Draft tokens per step, at most."""
    acceptance: Literal["token", "logits"] = "token"
    """`token` compares ids, exact for greedy on any backend; `logits` does rejection sampling by the draft's logits."""
    pad_draft_vocab: bool = False
    """Give the draft as many logits as the target has, for acceptance by logits; the added ones never win."""
    adaptive: bool = False
    """Shorten or switch off drafting while measured acceptance does not pay for it."""


Speculation = Annotated[NoSpeculation | DraftTarget, Field(discriminator="kind")]


class KvCache(Section):
    """How keys and values are stored."""

    dtype: KvDtype = "auto"
    """`auto` is the dtype of the model."""
    block_size: BlockSize = 32
    """Tokens per block; a power of two."""
    reuse: bool = True
    """Keep the blocks of finished requests and start the next request from its longest known prefix."""

    @model_validator(mode="after")
    def _blocks_are_powers_of_two(self) -> Self:
        if self.block_size & (self.block_size - 1):
            raise ValueError(f"block_size {self.block_size} is not a power of two")
        return self


class AttentionSinks(Section):
    """Endless sessions: the first tokens stay, the middle goes, the most recent ones are kept."""

    sink_tokens: Count = 4
    """First tokens that are never evicted."""
    window_tokens: Count
    """Most recent tokens kept besides the sinks."""
    strategy: Literal["rolling", "engine"] = "rolling"
    """`rolling`: the orchestrator drops old text; `engine`: the runtime's own StreamingLLM (TensorRT-LLM <= 0.21)."""
    evict_tokens: Count | None = None
    """Tokens dropped at once by `rolling`; null takes a quarter of the window."""

    @model_validator(mode="after")
    def _eviction_fits_the_window(self) -> Self:
        if self.evict_tokens is not None and self.evict_tokens > self.window_tokens:
            raise ValueError(f"evict_tokens {self.evict_tokens} exceeds window_tokens {self.window_tokens}")
        return self


class Limits(Section):
    """What one server must be able to hold."""

    max_batch_size: Count = 8
    """Sequences in flight."""
    max_input_len: Count = 4096
    """Prompt tokens of one request, at most."""
    max_output_len: Count = 1024
    """Generated tokens of one request, at most."""

    @property
    def max_seq_len(self) -> int:
        """Tokens of one sequence: prompt and answer."""
        return self.max_input_len + self.max_output_len


class Calibration(Section):
    """The data that activation and KV scales are measured on."""

    samples: Count = 256
    """Texts used."""
    max_len: Count = 512
    """Tokens of each text, at most."""
    seed: Seed = 0
    """Order and choice of the texts."""
    prompts: Name | None = None
    """A JSONL or text file; null takes the text that trtkit ships."""


class Serving(Section):
    """How the server listens."""

    streaming: bool = True
    """Decoupled models: one response per step instead of one per request."""
    http_port: Port = 8000
    """KServe v2 over HTTP."""
    grpc_port: Port = 8001
    """KServe v2 over gRPC."""
    metrics_port: Port = 8002
    """Prometheus metrics."""

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        ports = (self.http_port, self.grpc_port, self.metrics_port)
        if len(set(ports)) != len(ports):
            raise ValueError(f"http_port, grpc_port and metrics_port must differ, got {ports}")
        return self


class Verification(Section):
    """What `trtkit parity` and `trtkit bench` use unless told otherwise."""

    prompts: Name | None = None
    """A text or JSONL file of prompts; null takes the prompts that trtkit ships."""
    max_new_tokens: Count = 128
    """Tokens generated per prompt."""
    baseline: Name | None = None
    """A bench result to compare with."""
    min_identical: Share = 0.0
    """Share of prompts answered identically, at least. A different answer fails whatever the shares."""
    max_near_tie: Share = 1.0
    """Share of prompts whose answers part at a near-tie, at most."""
    max_ttft_ms: Positive | None = None
    """Median time to the first token in every run of a bench, at most."""
    max_tpot_ms: Positive | None = None
    """Median time per token after it in every run of a bench, at most."""
    min_speedup: Positive | None = None
    """Speed-up of every draft length in a bench, at least."""
    min_acceptance_rate: Share | None = None
    """Accepted / drafted tokens of every draft length in a bench, at least."""


class BuildConfig(Section):
    """One deployment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Names the build directory."""
    backend: Backend = "auto"
    """What the artifacts are for; `auto` takes engine where a GPU and TensorRT-LLM are present, else reference."""
    tensorrt_llm: str = "1.2.1"
    """The TensorRT-LLM version that the artifacts are for."""
    gpu: Gpu | None = None
    """Needed for the checks and plans that depend on the GPU."""
    target: Model
    """The model whose answers are served."""
    draft: Model | None = None
    """The model that proposes; required by draft_target."""
    speculation: Speculation = NoSpeculation()
    """How drafts are made and accepted."""
    kv_cache: KvCache = KvCache()
    """How keys and values are stored."""
    attention_sinks: AttentionSinks | None = None
    """Endless sessions; null keeps every token until the limits."""
    limits: Limits = Limits()
    """What one server must be able to hold."""
    calibration: Calibration = Calibration()
    """The data that activation and KV scales are measured on."""
    serving: Serving = Serving()
    """How the server listens."""
    verification: Verification = Verification()
    """What parity and bench use."""

    @model_validator(mode="after")
    def _draft_and_speculation_agree(self) -> Self:
        speculates = isinstance(self.speculation, DraftTarget)
        if speculates and self.draft is None:
            raise ValueError("speculation.kind draft_target needs a draft section")
        if self.draft is not None and not speculates:
            raise ValueError("a draft is given, but speculation.kind is none")
        return self

    @property
    def max_draft_len(self) -> int:
        """Draft tokens per step, at most; 0 without speculation."""
        return self.speculation.max_draft_len if isinstance(self.speculation, DraftTarget) else 0

    @property
    def models(self) -> dict[str, Model]:
        """The models by role: "target", and "draft" where there is one."""
        return {"target": self.target} | ({"draft": self.draft} if self.draft is not None else {})
