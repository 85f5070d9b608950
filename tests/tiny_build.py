"""A served build made of tiny random checkpoints, for tests with a real server. Knows the build layout, no pipeline."""

import json
import shutil
from pathlib import Path
from typing import Any

from tiny import tiny_checkpoint, tiny_tokenizer
from trtkit.builds import SCHEMA
from trtkit.config.load import parse_config
from trtkit.config.schema import BuildConfig
from trtkit.conversion.convert import convert_to
from trtkit.conversion.options import ConversionOptions
from trtkit.engines.inspect import EngineInfo, read_engine
from trtkit.engines.reference import write_reference_engine
from trtkit.engines.spec import EngineSpec
from trtkit.repository.render import TokenIds, render_repository, write_repository

END_ID = 2
PAD_ID = 0
MAX_DRAFT_LEN = 4
MAX_SEQ_LEN = 160


def tiny_config(*, draft: bool = True, adaptive: bool = False, **sections: Any) -> BuildConfig:
    """The configuration of a tiny build; nothing in it points at files. `sections` are keys of the YAML."""
    document: dict[str, Any] = {
        "name": "tiny",
        "backend": "reference",
        "target": {"checkpoint": "target", "dtype": "float32"},
        "limits": {"max_batch_size": 4, "max_input_len": 96, "max_output_len": MAX_SEQ_LEN - 96},
        **sections,
    }
    if draft:
        document["draft"] = {"checkpoint": "draft", "dtype": "float32"}
        document["speculation"] = {"kind": "draft_target", "max_draft_len": MAX_DRAFT_LEN, "adaptive": adaptive}
    return parse_config(document, where="tiny")


def tiny_build(folder: Path, config: BuildConfig | None = None, *, same_draft: bool = False) -> Path:
    """Assemble BUILD below `folder`: checkpoints, engines, tokenizer, model repository.

    The draft is the target without its last layer, so that some of its tokens are accepted; `same_draft` makes it the
    target itself, so that all are.
    """
    config = config or tiny_config()
    build = folder / "build"
    engines = {}
    for role in config.models:
        layers = {"num_hidden_layers": 2} if role == "draft" and not same_draft else {}
        source = tiny_checkpoint(folder / f"hf-{role}", "llama", **layers)
        engines[role] = _engine(build, role, source, config)
    (build / "tokenizer").mkdir()
    tiny_tokenizer(build / "tokenizer")
    files = render_repository(config, engines, TokenIds((END_ID,), PAD_ID))
    write_repository(files, build / "model_repository")
    manifest = {"schema": SCHEMA, "config": config.model_dump(mode="json")}
    (build / "manifest.json").write_text(json.dumps(manifest))
    return build


def copy_build(build: Path, folder: Path) -> Path:
    """A second build to break."""
    return Path(shutil.copytree(build, folder, ignore=shutil.ignore_patterns("launch", "logs")))


def _engine(build: Path, role: str, source: Path, config: BuildConfig) -> EngineInfo:
    options = ConversionOptions(dtype="float32", kv_cache_dtype=config.kv_cache.dtype)
    convert_to(source, build / "checkpoints" / role, options)
    spec = EngineSpec(
        max_batch_size=config.limits.max_batch_size,
        max_input_len=config.limits.max_input_len,
        max_seq_len=config.limits.max_seq_len,
        max_draft_len=config.max_draft_len if role == "target" else 0,
        block_size=config.kv_cache.block_size,
    )
    out = build / "engines" / role
    write_reference_engine(spec, build / "checkpoints" / role, out, out, config.tensorrt_llm)
    return read_engine(out)
