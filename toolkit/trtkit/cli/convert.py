"""`trtkit convert`: parse, call, show."""

from pathlib import Path
from typing import Any, get_args

import click

from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output
from trtkit.conversion.options import ConversionOptions, Dtype, KvCacheDtype, OutputFormat, Quantization

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("checkpoint")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--revision", help="Branch, tag or commit of a hub id.")
@click.option("--tp", "tensor_parallel", default=1, show_default=True, help="Ranks that every layer is cut over.")
@click.option("--pp", "pipeline_parallel", default=1, show_default=True, help="Stages the layers are spread over.")
@click.option("--ep", "expert_parallel", default=1, show_default=True, help="Groups of tp ranks that share experts.")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), default="auto", show_default=True, help="Of the weights.")
@click.option("--quantization", type=click.Choice(get_args(Quantization)), default="none", show_default=True)
@click.option("--kv-cache", "kv_cache_dtype", type=click.Choice(get_args(KvCacheDtype)), default="auto")
@click.option("--calibration", type=_FILE, help="Scales measured by `trtkit calibrate`.")
@click.option("--calibration-text", type=_FILE, help="Texts, one per line, for AWQ, SmoothQuant and NVFP4.")
@click.option(
    "--weight-only-arch", default=80, show_default=True, help="SM version INT8 and INT4 weights are packed for."
)
@click.option("--parallel-embedding", "use_parallel_embedding", is_flag=True, help="Cut the embedding over the ranks.")
@click.option("--format", "output_format", type=click.Choice(get_args(OutputFormat)), default="tensorrt_llm")
@click.option("--strict", is_flag=True, help="Refuse weights that are NaN or Inf instead of warning.")
@click.option("--allow-pickle", is_flag=True, help="Read pickles where there is no safetensors file.")
@click.option("--verify", is_flag=True, help="Read the result from the disk again and compare checksums.")
@with_output
def command(output: Output, checkpoint: str, out: Path, revision: str | None, verify: bool, **options: Any) -> None:
    """Convert CHECKPOINT, a folder, a GGUF file or a hub id, to a TensorRT-LLM checkpoint in the directory OUT.

    Interrupted, it goes on where it stopped when it is run again. docs/conversion.md says what is written and which
    errors exist.
    """
    from trtkit.checkpoints.source import resolve_checkpoint
    from trtkit.conversion.convert import convert_to

    folder = resolve_checkpoint(checkpoint, cache_directory(), revision)
    report = convert_to(folder, out, ConversionOptions(**options), output.progress, verify=verify)
    output.result(report.as_dict(), report.summary())
