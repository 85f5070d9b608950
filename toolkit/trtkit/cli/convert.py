"""`trtkit convert`: parse, call, show."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from trtkit.cli.environment import cache_directory
from trtkit.cli.output import Output, with_output
from trtkit.conversion.options import (
    MODELOPT_QUANTIZATIONS,
    ConversionOptions,
    Dtype,
    KvCacheDtype,
    OutputFormat,
    Quantization,
)
from trtkit.errors import InputError

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
@click.option("--calibration-text", type=_FILE, help="Texts for AWQ, SmoothQuant and NVFP4.")
@click.option(
    "--weight-only-arch", default=80, show_default=True, help="SM version INT8 and INT4 weights are packed for."
)
@click.option("--parallel-embedding", "use_parallel_embedding", is_flag=True, help="Cut the embedding over the ranks.")
@click.option(
    "--pad-vocab", "pad_vocab_to", type=int, metavar="SIZE", help="Rows of embedding and head, as a larger model has."
)
@click.option("--format", "output_format", type=click.Choice(get_args(OutputFormat)), default="tensorrt_llm")
@click.option("--strict", is_flag=True, help="Refuse weights that are NaN or Inf instead of warning.")
@click.option("--allow-pickle", is_flag=True, help="Read pickles where there is no safetensors file.")
@click.option("--verify", is_flag=True, help="Read the result from the disk again and compare checksums.")
@with_output
def command(
    output: Output, checkpoint: str, out: Path, revision: str | None, calibration_text: Path | None, **options: Any
) -> None:
    """Convert CHECKPOINT, a folder, a GGUF file or a hub id, to a TensorRT-LLM checkpoint in the directory OUT.

    Interrupted, it goes on where it stopped when it is run again. docs/conversion.md says what is written and which
    errors exist.
    """
    from trtkit.checkpoints.source import resolve_checkpoint
    from trtkit.conversion.convert import convert_to

    verify = options.pop("verify")
    asked = ConversionOptions(**options)
    folder = resolve_checkpoint(checkpoint, cache_directory(), revision, pickles=asked.allow_pickle)
    asked = replace(asked, calibration_ids=_calibration_ids(folder, asked, calibration_text))
    report = convert_to(folder, out, asked, output.progress, verify=verify)
    output.result(report.as_dict(), report.summary())


def _calibration_ids(folder: Path, options: ConversionOptions, texts: Path | None) -> tuple[tuple[int, ...], ...]:
    """What modelopt calibrates on: the given texts, else those that trtkit ships; nothing for other conversions."""
    if options.quantization not in MODELOPT_QUANTIZATIONS:
        if texts is not None:
            raise InputError(
                f"--calibration-text is for {', '.join(MODELOPT_QUANTIZATIONS)}, not for {options.quantization}",
                "measure scales with `trtkit calibrate` and pass the file with --calibration",
                code="CONV-OPTION",
            )
        return ()
    from trtkit.calibration.modelopt_samples import calibration_ids
    from trtkit.config.schema import Calibration
    from trtkit.conversion.foreign_source import foreign_files
    from trtkit.conversion.modelopt_limits import refuse_too_large
    from trtkit.doctor.host import read_memory

    if foreign_files(folder, allow_pickle=options.allow_pickle):
        raise InputError(
            f"nvidia-modelopt reads safetensors, so {options.quantization} is not made of GGUF files and pickles",
            "give the safetensors checkpoint, or another quantization",
            code="CONV-OPTION",
        )
    refuse_too_large(folder, read_memory(Path("/")).available_bytes)
    return calibration_ids(folder, Calibration(prompts=str(texts) if texts is not None else None))
