"""`trtkit plan`."""

from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table

from trtkit.cli.environment import cache_directory
from trtkit.cli.finite_range import FiniteRange
from trtkit.cli.output import Output, with_output
from trtkit.config.load import load_config
from trtkit.doctor import inspect_machine
from trtkit.planning.gpus import CATALOGUE
from trtkit.planning.plan import Plan
from trtkit.planning.plot import write_plot
from trtkit.planning.record import plan_record
from trtkit.planning.request import PlanRequest, plan_config

_SHOWN_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)


def _list_gpus(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        for gpu in CATALOGUE:
            rates = f"{gpu.bandwidth_bytes_per_s / 1e9:.0f} GB/s, {gpu.fp16_flops / 1e12:.0f} TFLOP/s FP16"
            fp8 = f", {gpu.fp8_flops / 1e12:.0f} FP8" if gpu.fp8_flops else ""
            click.echo(f"{gpu.name:22} SM {gpu.sm:<4} {gpu.memory_bytes // 10**9:>4} GB  {rates}{fp8}  ({gpu.source})")
        context.exit()


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--gpu", metavar="NAME", help="Instead of the YAML's GPU.")
@click.option("--gpu-spec", metavar="KEY=VALUE,...", help="A GPU outside the catalogue; docs/plan.md has the keys.")
@click.option("--context", "context_tokens", type=click.IntRange(min=0), default=0, help="Earlier tokens, for times.")
@click.option("--acceptance", type=FiniteRange(0, 1), help="Accepted / drafted tokens, as bench measured them.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture (.png, .svg, .pdf).")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Instead of the YAML's; may be repeated.")
@click.option(
    "--list-gpus", is_flag=True, is_eager=True, expose_value=False, callback=_list_gpus, help="The catalogue."
)
@with_output
def command(output: Output, config: Path, plot: Path | None, overrides: tuple[str, ...], **choices: Any) -> int:
    """Predict memory, speed and the best draft length of CONFIG, without a GPU and without its weights.

    Exits with 2 when not even one sequence fits.
    """
    plan = plan_config(load_config(config, overrides), _request(config, choices))
    if plot is not None:
        write_plot(plan, plot)
    output.result(plan_record(plan), render(plan))
    return 2 if plan.fit is not None and not plan.fit.sequences else 0


def _request(config: Path, choices: dict[str, Any]) -> PlanRequest:
    return PlanRequest(
        where=str(config),
        cache=cache_directory(),
        gpu=choices["gpu"],
        gpu_spec=choices["gpu_spec"],
        host_bytes=inspect_machine().memory.limit_bytes,
        context_tokens=choices["context_tokens"],
        acceptance_rate=choices["acceptance"],
    )


def render(plan: Plan) -> Group:
    """The tables for people."""
    parts: list[RenderableType] = [_models(plan), "", _memory(plan), "", _alternatives(plan)]
    parts += ["", _gains(plan)] if plan.speculation else []
    return Group(*parts)


def _models(plan: Plan) -> Table:
    columns = ("", "weights", "per rank", "buffers", "KV per token", "KV per sequence", "ms per token")
    table = Table(*columns, box=None, pad_edge=False)
    gpu, context = plan.given.gpu, plan.given.context_tokens
    for role, model in plan.models.items():
        table.add_row(
            role,
            size(sum(model.rank_bytes)),
            f"{size(max(model.rank_bytes))} x {len(model.rank_bytes)}",
            size(model.buffer_bytes),
            size(model.kv_bytes_per_token),
            size(model.kv_bytes_per_sequence),
            f">= {model.token_ms(gpu, context):.2f}" if gpu else "",
        )
    return table


def _memory(plan: Plan) -> Table:
    table = Table("", "", box=None, show_header=False, pad_edge=False)
    asked, built = plan.config.limits, plan.models["target"].limits
    table.add_row(
        "limits",
        f"prompt {asked.max_input_len} + answer {asked.max_output_len} = {asked.max_seq_len} tokens"
        f" (max_seq_len {built.built_max_seq_len}, max_num_tokens {built.max_num_tokens})",
    )
    where = f"{plan.given.gpu.name}" if plan.given.gpu else "this host"
    if plan.fit is not None and plan.fit.sequences:
        table.add_row("sequences that fit", f"{plan.fit.sequences} on {where}" + (", shared" if plan.shared else ""))
        table.add_row(
            "KV fractions", ", ".join(f"{fraction:.3f}" for fraction in plan.fit.fractions) + ", in any load order"
        )
        table.add_row("KV tokens", ", ".join(map(str, plan.fit.max_tokens)) + " (max_tokens_in_paged_kv_cache)")
    elif plan.fit is not None:
        table.add_row("sequences that fit", f"0 on {where}: {size(plan.fit.shortfall_bytes)} too little")
    if plan.rolling is not None and plan.rolling.ms_per_token is not None:
        cost = f"{plan.rolling.prefill_ms:.1f} ms per {plan.rolling.evict_tokens} tokens"
        table.add_row("rolling sinks", f"{cost}, {plan.rolling.ms_per_token:.3f} ms per token")
    streams = plan.host.peak_bytes < plan.host.unstreamed_bytes
    whole = f"{size(plan.host.unstreamed_bytes)} if not" if streams else "nvidia-modelopt holds the whole model"
    table.add_row("host memory", f"{size(plan.host.peak_bytes)}{' streamed' if streams else ''}; {whole}")
    if plan.host.builder_bytes_per_worker:
        table.add_row("trtllm-build", f"{size(plan.host.builder_bytes_per_worker)} per worker")
    table.add_row("disk", size(plan.host.disk_bytes))
    return table


def _alternatives(plan: Plan) -> Table:
    table = Table("sequences with KV", "all tokens", "sinks and window", "heavy hitters", box=None, pad_edge=False)
    for dtype in dict.fromkeys(alternative.kv_dtype for alternative in plan.alternatives):
        row = [alternative for alternative in plan.alternatives if alternative.kv_dtype == dtype]
        table.add_row(dtype, *(f"{one.max_sequences} ({size(one.kv_bytes_per_sequence)})" for one in row))
    return table


def _gains(plan: Plan) -> Group:
    found = plan.speculation
    assert found is not None, "only plans with a draft come here"
    rates = sorted({gain.acceptance_rate for gain in found.gains})
    table = Table("speed-up at acceptance", *(f"{rate:.2f}" for rate in rates), box=None, pad_edge=False)
    for length in _SHOWN_LENGTHS:
        row = [f"{gain.speedup:.2f}" for gain in found.gains if gain.max_draft_len == length]
        table.add_row(f"K = {length}", *row)
    pays = f"pays from acceptance {found.break_even:.2f}" if found.break_even is not None else "never pays"
    cost = f"a draft step costs {100 * found.draft_cost:.1f} % of a target pass"
    advice = f"recommended K at acceptance {found.chance:.2f}: {found.recommended or 'off'}"
    crossover = f"no gain from {found.crossover_batch} sequences in flight" if (found.crossover_batch or 1) > 1 else ""
    return Group(table, f"{cost}; K = {plan.config.max_draft_len} {pays}", advice, *filter(None, [crossover]))


def size(number_bytes: int) -> str:
    """Bytes for people, in decimal units as data sheets use them."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number_bytes >= factor:
            return f"{number_bytes / factor:.2f} {unit}"
    return f"{number_bytes} B"
