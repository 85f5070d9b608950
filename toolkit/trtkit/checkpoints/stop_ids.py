"""Which token ids end an answer, as the checkpoint says. Knows two JSON files, no tokenizer."""

from pathlib import Path

from trtkit.checkpoints.json_fields import read_json_fields
from trtkit.errors import CheckpointError


def read_stop_ids(folder: Path) -> tuple[tuple[int, ...], int]:
    """(end_ids, pad_id) of a checkpoint.

    generation_config.json wins over config.json, as in transformers' generate: chat models name the end of a turn
    only there. The pad id falls back on the first end id. Raises CheckpointError when no end id is named.
    """
    config = read_json_fields(folder / "config.json")
    sources = [config]
    if (folder / "generation_config.json").is_file():
        sources.insert(0, read_json_fields(folder / "generation_config.json"))
    end_ids = next((ids for source in sources if (ids := source.ids("eos_token_id"))), ())
    if not end_ids:
        raise CheckpointError(
            "no eos_token_id, so an answer would never end",
            "add eos_token_id to config.json or generation_config.json",
            code="CKPT-EOS",
            where=str(folder / "config.json"),
        )
    pad_ids = next((ids for source in sources if (ids := source.ids("pad_token_id"))), end_ids)
    return end_ids, pad_ids[0]
