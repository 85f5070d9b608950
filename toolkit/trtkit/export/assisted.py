"""BuildConfig to a transformers script with assisted generation. Pure; the script is text and needs only transformers.

The oracle of parity is plain generation; assisted generation shows what transformers itself gains from the draft.
"""

from trtkit.config.schema import BuildConfig, DraftTarget
from trtkit.errors import InputError
from trtkit.export.counterpart import Counterpart

_TEMPLATE = '''\
"""Generates with transformers from the pair of {name!r}; written by trtkit export transformers.

usage: python THIS_FILE [--max-new-tokens N] [--plain] PROMPT...
Prints one JSON object per prompt: prompt_ids, token_ids, text. --plain leaves the draft out.
"""

import argparse
import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TARGET = {target}
DRAFT = {draft}
MAX_NEW_TOKENS = {max_new_tokens}
MAX_DRAFT_LEN = {max_draft_len}
MAX_INPUT_LEN = {max_input_len}


def load(model):
    """One model in evaluation mode, on the GPU where there is one."""
    loaded = AutoModelForCausalLM.from_pretrained(
        model["checkpoint"], revision=model["revision"], dtype=getattr(torch, model["dtype"])
    )
    return loaded.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def generation_options(target, draft, max_new_tokens):
    """Greedy, as TensorRT-LLM's top_k 1; a fixed number of draft tokens per step."""
    options = {{"max_new_tokens": max_new_tokens, "do_sample": False}}
    options |= {{"temperature": None, "top_p": None, "top_k": None}}
    if draft is not None:
        draft.generation_config.num_assistant_tokens = MAX_DRAFT_LEN
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        options["assistant_model"] = draft
    return options


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--max-new-tokens", type=int, default=MAX_NEW_TOKENS)
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(TARGET["checkpoint"], revision=TARGET["revision"])
    target = load(TARGET)
    draft = load(DRAFT) if DRAFT and not arguments.plain else None
    options = generation_options(target, draft, arguments.max_new_tokens)
    for prompt in arguments.prompts:
        inputs = tokenizer(prompt, return_tensors="pt").to(target.device)
        num_prompt_tokens = inputs["input_ids"].shape[1]
        if num_prompt_tokens > MAX_INPUT_LEN:
            raise SystemExit(f"the prompt has {{num_prompt_tokens}} tokens, at most {{MAX_INPUT_LEN}} are allowed")
        with torch.inference_mode():
            token_ids = target.generate(**inputs, **options)[0].tolist()
        answer = token_ids[num_prompt_tokens:]
        text = tokenizer.decode(answer, skip_special_tokens=True)
        print(json.dumps({{"prompt_ids": token_ids[:num_prompt_tokens], "token_ids": answer, "text": text}}))


if __name__ == "__main__":
    main()
'''


def export_transformers(config: BuildConfig, *, checkpoints: dict[str, str]) -> Counterpart:
    """The script, with notes. `checkpoints` maps a role to the folder or hub id that transformers is given.

    Raises InputError for a quantisation that transformers cannot read from this checkpoint.
    """
    for role, model in config.models.items():
        if model.quantization not in ("none", "fp8"):
            raise InputError(
                f"the script loads weights as they are stored, not as {model.quantization}",
                f"write {role}.quantization: none",
                code="EXPORT-QUANT",
                where=f"{role}.quantization",
            )
    text = _TEMPLATE.format(
        name=config.name,
        target=_model(config, "target", checkpoints),
        draft=_model(config, "draft", checkpoints) if config.draft else "None",
        max_new_tokens=min(config.verification.max_new_tokens, config.limits.max_output_len),
        max_draft_len=config.max_draft_len,
        max_input_len=config.limits.max_input_len,
    )
    return Counterpart("transformers", text, tuple(_notes(config)))


def _model(config: BuildConfig, role: str, checkpoints: dict[str, str]) -> str:
    model = config.models[role]
    return repr({"checkpoint": checkpoints[role], "revision": model.revision, "dtype": model.dtype})


def _notes(config: BuildConfig) -> list[str]:
    notes = []
    if any(model.quantization == "fp8" for model in config.models.values()):
        notes.append("quantization fp8: the script computes with the weights as they are stored")
    if config.kv_cache.dtype != "auto":
        notes.append(f"kv_cache.dtype {config.kv_cache.dtype}: transformers keeps keys and values in the model's dtype")
    if config.attention_sinks is not None:
        notes.append("attention_sinks: transformers keeps every token")
    if isinstance(config.speculation, DraftTarget) and config.speculation.adaptive:
        notes.append("speculation.adaptive: the script drafts with a fixed length")
    if any(model.tensor_parallel > 1 for model in config.models.values()):
        notes.append("tensor_parallel: the script runs each model on one device")
    return notes
