"""The oracle against transformers itself, and the record it makes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_checkpoint, write_json
from trtkit.errors import CheckpointError, InputError, MissingToolError, RequestError
from trtkit.evaluate.oracle.batch import answer_batch
from trtkit.evaluate.oracle.oracle import TOP_K, Oracle
from trtkit.evaluate.oracle.record import read_record
from trtkit.evaluate.oracle.recording import RecordRequest, make_record
from trtkit.progress import Progress
from trtkit.prompts.encoding import PromptEncoder
from trtkit.prompts.files import Prompt

PROMPT = (5, 9, 33, 200, 7)
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module", params=["llama", "gemma2", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param, tokenizer=True)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), tokenizer=True)


def generate(oracle: Oracle, max_new_tokens: int, end_ids: list[int]) -> list[int]:
    inputs = torch.tensor([PROMPT])
    out: Any = oracle.model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=end_ids,
        pad_token_id=0,
    )
    return out[0, len(PROMPT) :].tolist()  # type: ignore[no-any-return]


def test_it_says_what_generate_says(folder: Path) -> None:
    oracle = Oracle.load(folder)
    assert [token for token, _ in oracle.answer(PROMPT, 24, [2])] == generate(oracle, 24, [2])


def test_a_batch_of_prompts_is_answered_as_each_alone(folder: Path) -> None:
    oracle = Oracle.load(folder)
    prompts = [PROMPT, PROMPT[:2], (11, 12, 13, 14, 15, 16, 17, 18)]
    end_id = generate(oracle, 12, [])[6]  # ends the first answer early, while the others go on
    alone = [[step for _, step in oracle.answer(prompt, 12, [end_id])] for prompt in prompts]
    together = answer_batch(oracle, prompts, 12, [end_id])
    for one, other in zip(alone, together, strict=True):
        assert [step.token_ids[0] for step in one] == [step.token_ids[0] for step in other]
        assert [step.gaps for step in one] == [pytest.approx(step.gaps, abs=1e-4) for step in other]
        assert [step.best_log_prob for step in one] == pytest.approx([step.best_log_prob for step in other], abs=1e-4)


def test_log_probabilities_are_those_of_the_whole_vocabulary(llama: Path) -> None:
    oracle = Oracle.load(llama)
    (_, step), *_ = oracle.answer(PROMPT, 1, [2])
    expected = torch.log_softmax(oracle.next_logits(PROMPT), dim=0)[list(step.token_ids)]
    assert step.log_probs == pytest.approx(expected.tolist(), abs=1e-5)


def test_it_stops_with_the_end_token(llama: Path) -> None:
    oracle = Oracle.load(llama)
    free = [token for token, _ in oracle.answer(PROMPT, 8, [])]
    position = next(i for i, token in enumerate(free) if token not in free[:i] and i > 1)
    ended = [token for token, _ in oracle.answer(PROMPT, 8, [free[position]])]
    assert ended == free[: position + 1] == generate(oracle, 8, [free[position]])


def test_gaps_and_distances_are_those_of_the_head(llama: Path) -> None:
    oracle = Oracle.load(llama)
    _, step = next(iter(oracle.answer(PROMPT, 1, [])))
    with torch.inference_mode():
        out = oracle.model(input_ids=torch.tensor([PROMPT]), output_hidden_states=True)
    logits, state = out.logits[0, -1], out.hidden_states[-1][0, -1]
    values, ids = logits.topk(TOP_K)
    rows = oracle.model.get_output_embeddings().weight[ids]
    assert list(step.token_ids) == ids.tolist()
    assert step.state_norm == pytest.approx(state.norm().item(), rel=1e-5)
    assert step.gaps == pytest.approx((values[0] - values).tolist(), abs=1e-5)
    assert step.distances == pytest.approx((rows[0] - rows).norm(dim=1).tolist(), rel=1e-5)
    assert step.margin == step.gaps[1]


def test_equal_logits_are_ordered_by_token_id(tmp_path: Path) -> None:
    oracle = Oracle.load(tiny_checkpoint(tmp_path / "tiny"))
    with torch.no_grad():
        oracle.model.get_output_embeddings().weight.zero_()
    assert next(iter(oracle.answer(PROMPT, 1, [])))[1].token_ids[:3] == (0, 1, 2)


def test_the_stored_dtype_is_what_the_files_hold(tmp_path: Path) -> None:
    assert Oracle.load(tiny_checkpoint(tmp_path / "half", dtype="bfloat16")).weights_dtype == "bfloat16"


def test_a_folder_that_transformers_cannot_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="ORACLE-LOAD"):
        Oracle.load(tmp_path)


def test_chat_messages_go_through_the_template_of_the_checkpoint(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "chat", tokenizer=True)
    write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    )
    sent = PromptEncoder.load(folder).encode(Prompt("c", "chat", messages=(("user", "hi"),)))
    assert sent.text == "<s>user: hi"
    assert sent.prompt_ids[0] == 1


def test_a_chat_without_a_template_is_refused(llama: Path) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        PromptEncoder.load(llama).encode(Prompt("c", "chat", messages=(("user", "hi"),)))


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('no') }}", "{{ messages[9]['role'] }}", "{% for x in %}", "{{ 1 / 0 }}", "{{ 1 + 'a' }}"],
)
def test_a_chat_that_the_template_refuses_is_refused_with_its_reason(template: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "chat", tokenizer=True)
    write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    )
    with pytest.raises(RequestError, match="c: the chat template refuses these messages"):
        PromptEncoder.load(folder).encode(Prompt("c", "chat", messages=(("user", "hi"),)))


def request(folder: Path, *prompts: Prompt, **changes: Any) -> RecordRequest:
    values: dict[str, Any] = {"end_ids": (2,), "max_new_tokens": 4, "max_input_len": 12}
    return RecordRequest("tiny", folder, "d1", prompts, **{**values, **changes})


ONE = Prompt("one", "short", text="the one")
TWO = Prompt("two", "short", text="the other")
CHAT = Prompt("chat", "chat", messages=(("user", "hi"),))
LONG = Prompt("long", "long", text="x" * 40)


def test_a_record_holds_what_was_asked_and_what_was_left_out(llama: Path, tmp_path: Path) -> None:
    oracle, encoder = Oracle.load(llama), PromptEncoder.load(llama)
    record = make_record(oracle, encoder, request(llama, ONE, CHAT, TWO, LONG), tmp_path / "record.json")
    assert [answer.name for answer in record.answers] == ["one", "two"]
    assert {entry.name: entry.reason for entry in record.skipped} == {
        "chat": "chat is a chat, and the tokenizer has no chat template",
        "long": "long has 40 tokens, the deployment takes 12",
    }
    assert read_record(tmp_path / "record.json") == record
    assert record.answers[0].token_ids == tuple(t for t, _ in oracle.answer(record.answers[0].prompt_ids, 4, [2]))


def test_no_prompt_is_asked_twice(llama: Path, tmp_path: Path) -> None:
    oracle, encoder = Oracle.load(llama), PromptEncoder.load(llama)
    first = make_record(oracle, encoder, request(llama, ONE), tmp_path / "record.json")
    asked: list[str] = []

    class Watched(Oracle):
        def answer(self, prompt_ids, max_new_tokens, end_ids, rolling=None):  # type: ignore[no-untyped-def]
            asked.append("asked")
            return super().answer(prompt_ids, max_new_tokens, end_ids, rolling)

    watched = Watched(oracle.model, oracle.dtype, oracle.weights_dtype)
    both = make_record(watched, encoder, request(llama, TWO, standing=first), tmp_path / "record.json")
    assert asked == ["asked"]
    assert both.answers_to([ONE.key, TWO.key])[0] == first.answers[0]


def test_an_interrupted_recording_keeps_its_answers(llama: Path, tmp_path: Path) -> None:
    oracle, encoder = Oracle.load(llama), PromptEncoder.load(llama)

    def interrupt(event: Progress) -> None:
        if event.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_record(oracle, encoder, request(llama, ONE, TWO), tmp_path / "record.json", interrupt)
    assert not (tmp_path / "record.json").exists()
    assert (tmp_path / ".record.json.partial").exists()
    make_record(oracle, encoder, request(llama, ONE, TWO), tmp_path / "record.json")
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_other_settings_make_a_new_record(llama: Path, tmp_path: Path) -> None:
    oracle, encoder = Oracle.load(llama), PromptEncoder.load(llama)
    first = make_record(oracle, encoder, request(llama, ONE), tmp_path / "record.json")
    other = request(llama, TWO, max_new_tokens=6, standing=first)
    longer = make_record(oracle, encoder, other, tmp_path / "record.json")
    assert [answer.name for answer in longer.answers] == ["two"]


def test_an_edited_prompt_takes_the_place_of_the_old_one_of_its_name(llama: Path, tmp_path: Path) -> None:
    oracle, encoder = Oracle.load(llama), PromptEncoder.load(llama)
    path = tmp_path / "record.json"
    first = make_record(oracle, encoder, request(llama, ONE, TWO, CHAT), path)
    edited = [Prompt("one", "short", text="another one"), Prompt("chat", "chat", text="no chat any more")]
    record = make_record(oracle, encoder, request(llama, *edited, max_input_len=None, standing=first), path)
    assert sorted((answer.name, answer.text) for answer in record.answers) == [
        ("chat", "no chat any more"),
        ("one", "another one"),
        ("two", "the other"),
    ]
    assert record.skipped == ()


def test_a_prompt_that_is_answered_now_is_no_longer_left_out(llama: Path, tmp_path: Path) -> None:
    oracle, encoder = Oracle.load(llama), PromptEncoder.load(llama)
    path = tmp_path / "record.json"
    first = make_record(oracle, encoder, request(llama, ONE, LONG), path)
    again = request(llama, LONG, max_input_len=50, standing=first)
    assert first.skipped and make_record(oracle, encoder, again, path).skipped == ()


def test_logits_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    oracle = Oracle.load(tiny_checkpoint(tmp_path / "tiny"))
    with torch.no_grad():
        oracle.model.get_output_embeddings().weight[3] = float("nan")
    with pytest.raises(CheckpointError, match="no numbers in float32"):
        next(iter(oracle.answer(PROMPT, 1, [])))


@pytest.mark.parametrize("device", ["cuda:999", "no-such-device"])
def test_a_device_that_torch_has_not_is_said(device: str, llama: Path) -> None:
    with pytest.raises(MissingToolError, match=f"device {device}"):
        Oracle.load(llama, device=device)


def test_nothing_to_ask_is_an_error_that_says_why(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="long has 40 tokens"):
        make_record(Oracle.load(llama), PromptEncoder.load(llama), request(llama, LONG), tmp_path / "record.json")
