"""`trtkit parity`."""

from pathlib import Path
from typing import Any, get_args

import click

from trtkit.builds import open_build
from trtkit.cli.command_line import command_line
from trtkit.cli.finite_range import FiniteRange
from trtkit.cli.output import Output, with_output
from trtkit.cli.parity_tables import render, render_layers, render_samples
from trtkit.cli.prompt_options import prompt_options, taken_choice
from trtkit.config.schema import KvDtype, Quantization
from trtkit.evaluate.endpoints.deployment import parse_target
from trtkit.evaluate.oracle.libraries import require_oracle_libraries
from trtkit.evaluate.oracle.numerics import GivenFormats
from trtkit.evaluate.oracle.record import ParityRecord
from trtkit.evaluate.oracle.record_choice import PromptChoice, record_build
from trtkit.evaluate.oracle.tolerance import Dtype
from trtkit.evaluate.parity.run import CheckOptions, check_parity
from trtkit.evaluate.parity.shares import ParityShares, refuse_difference

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def command() -> None:
    """Compare a deployment's greedy tokens with those of transformers on the original checkpoint."""


@command.command()
@click.argument("build", type=click.Path(path_type=Path))
@prompt_options()
@click.option("--dtype", type=click.Choice(get_args(Dtype)), default="float32", show_default=True, help="The oracle's.")
@click.option("--device", default="cpu", show_default=True, help="Where the oracle runs, e.g. cuda.")
@click.option(
    "--batch", "batch_size", type=click.IntRange(min=1), default=1, show_default=True, help="Prompts asked at once."
)
@with_output
def record(output: Output, build: Path, dtype: Dtype, device: str, batch_size: int, **choice: Any) -> None:
    """Ask transformers on BUILD's original target, and keep the answers in BUILD/parity/record.json.

    An interrupted recording continues; prompts that are recorded already are not asked again.
    """
    made = open_build(build)
    kept = record_build(
        made,
        PromptChoice(**choice),
        dtype=dtype,
        device=device,
        batch_size=batch_size,
        on_progress=output.progress,
    )
    output.result(_record_document(kept, build), _recorded(kept, build))


@command.command()
@click.argument("target", metavar="BUILD|grpc://HOST:PORT|http://HOST:PORT/v1")
@prompt_options()
@click.option("--record", type=_FILE, help="A record made earlier; needed for a URL.")
@click.option("--draft-len", "draft_lens", type=click.IntRange(min=0), multiple=True, help="0 is off; repeatable.")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), help="Of a server given by URL. [the recorded build's]")
@click.option("--kv-dtype", type=click.Choice(get_args(KvDtype)), help="Its cache's. [the recorded build's]")
@click.option("--quantization", type=click.Choice(get_args(Quantization)), help="Its layers'. [the recorded build's]")
@click.option("--in-process", is_flag=True, help="Execute BUILD's checkpoints here, without a server.")
@click.option("--replay/--no-replay", default=True, help="Follow answers past a near-tie to their end (default).")
@click.option("--min-identical", type=FiniteRange(0, 1), help="Share of prompts; exit code 1 below. [build's, or 0]")
@click.option("--max-near-tie", type=FiniteRange(0, 1), help="Share of prompts; exit code 1 above. [build's, or 1]")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Reads the text of a server without token ids; default: the build's.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="For the reports; default BUILD/parity.")
@with_output
def check(output: Output, target: str, **options: Any) -> None:
    """Compare the served deployment with the record, which is made first if it is missing.

    Each prompt is sent with speculation off and on: cold, repeated, and together with others; one prompt of each group
    also unstreamed and after a cancelled request. A difference that the rounding of the deployment's dtype explains is
    a near-tie. Exits with 1 when an answer is different. NVIDIA's llmapi model and OpenAI-compatible servers choose
    their own draft length; where they send no token ids, answers are compared as text.
    """
    choice = taken_choice(options)
    shares = ParityShares(*(options.pop(key) for key in ("min_identical", "max_near_tie")))
    formats = GivenFormats(*(options.pop(key) for key in ("dtype", "kv_dtype", "quantization")))
    document = check_parity(
        parse_target(target),
        CheckOptions(choice, shares=shares, formats=formats, **options, command=command_line()),
        on_progress=output.progress,
    )
    output.result(document, render(document))
    refuse_difference(document)


@command.command()
@click.argument("build", type=click.Path(path_type=Path))
@prompt_options(default_limit=8, has_length=False)
@click.option(
    "--role", type=click.Choice(["target", "draft"]), default="target", show_default=True, help="Which model."
)
@with_output
def checkpoint(output: Output, build: Path, role: str, **choice: Any) -> None:
    """Compare BUILD's converted checkpoint with the original, layer by layer, without a server.

    Names the first part of the first layer whose output rounding does not explain, and exits with 1.
    """
    require_oracle_libraries()  # torch is imported here, so that --help and check do without it
    from trtkit.evaluate.checkpoint.run import compare_checkpoint, refuse_fault

    document = compare_checkpoint(
        open_build(build), PromptChoice(**choice), role=role, command=command_line(), on_progress=output.progress
    )
    output.result(document, render_layers(document))
    refuse_fault(document)


@command.command()
@click.argument("build", type=click.Path(path_type=Path))
@prompt_options(default_limit=3, has_length=False)
@click.option(
    "--samples", "most_samples", type=click.IntRange(min=64), default=2000, show_default=True, help="At most."
)
@click.option(
    "--distance",
    type=FiniteRange(0, 1, min_open=True),
    default=0.2,
    show_default=True,
    help="Total variation that must be found with probability 0.9.",
)
@click.option("--draft-len", "draft_lens", type=click.IntRange(min=0), multiple=True, help="0 is off; repeatable.")
@click.option("--temperature", type=FiniteRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Repeats the whole check.")
@click.option("--alpha", type=FiniteRange(0, 1, min_open=True), default=0.01, show_default=True)
@with_output
def sampling(output: Output, build: Path, **options: Any) -> None:
    """Test whether BUILD's samples, with and without speculation, follow the original target's distribution.

    An exact test at up to four looks, so that a good deployment ends it early. --alpha is the probability of a false
    alarm in the whole run; a deviation of --distance is found with probability 0.9. Exits with 1 when the distribution
    is another one.
    """
    require_oracle_libraries()
    from trtkit.evaluate.sampling.run import SamplingOptions, check_sampling, refuse_bias

    choice = taken_choice(options)
    chosen = SamplingOptions(choice, **options, command=command_line())
    document = check_sampling(open_build(build), chosen, output.progress)
    output.result(document, render_samples(document))
    refuse_bias(document)


def _record_document(kept: ParityRecord, build: Path) -> dict[str, Any]:
    return {
        "schema": "trtkit.parity-recorded/1",
        "record": str(build / "parity" / "record.json"),
        "prompts": [{"name": a.name, "group": a.group, "num_tokens": len(a.token_ids)} for a in kept.answers],
        "skipped": [left_out.as_dict() for left_out in kept.skipped],
        "versions": dict(kept.header.versions),
    }


def _recorded(kept: ParityRecord, build: Path) -> str:
    num_tokens = sum(len(answer.token_ids) for answer in kept.answers)
    left_out = "".join(f"\nleft out {entry.name}: {entry.reason}" for entry in kept.skipped)
    where = build / "parity" / "record.json"
    return f"{len(kept.answers)} prompts, {num_tokens} tokens in {kept.header.dtype}: {where}{left_out}"
