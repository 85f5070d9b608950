"""What a step computes: decode rows first, then chunks of prompts, within a budget of rows."""

import pytest
from trtkit.reference.kv_cache.block_pool import BlockPool
from trtkit.reference.kv_cache.block_tables import BlockTable, BlockTables
from trtkit.reference.kv_cache.options import ReuseRule
from trtkit.reference.request import GenerationRequest, Returns
from trtkit.reference.sampling.params import SamplingParams
from trtkit.reference.scheduler.scheduler import Scheduler
from trtkit.reference.scheduler.sequence import Sequence, next_chunk


def make_request(name: str, num_prompt_tokens: int, draft: tuple[int, ...] = ()) -> GenerationRequest:
    prompt = tuple(ord(name[0]) * 1000 + i for i in range(num_prompt_tokens))
    return GenerationRequest(name, prompt, 10, draft_ids=draft)


def make_scheduler(max_sequences: int = 4, max_num_tokens: int = 8, num_blocks: int = 40) -> Scheduler:
    tables = BlockTables(BlockPool(num_blocks), 4, "off", num_new_tokens=max_num_tokens)
    return Scheduler(tables, max_sequences=max_sequences, max_num_tokens=max_num_tokens)


def run(scheduler: Scheduler) -> list[tuple[str, int, int]]:
    """One step in which every choosing row picks token 0: (request, rows, rows that choose)."""
    work = []
    for segment in scheduler.plan().segments:
        work.append((segment.sequence.request.request_id, len(segment.token_ids), segment.num_choosing))
        if segment.num_choosing:
            segment.sequence.append(0)
            segment.sequence.settle(1)
        else:
            segment.sequence.num_computed += len(segment.token_ids)
        scheduler.advance(segment.sequence)
    scheduler.check()
    return work


def sequence_of(request: GenerationRequest, num_reused: int = 0) -> Sequence:
    sequence = Sequence(request)
    sequence.start(BlockTable([0, 1, 2], num_reused, 0, 0, range(0)))
    return sequence


def test_a_prompt_within_the_budget_is_one_chunk() -> None:
    scheduler = make_scheduler()
    scheduler.enqueue(make_request("a", 5))
    assert [run(scheduler), run(scheduler)] == [[("a", 5, 1)], [("a", 1, 1)]]


def test_a_prompt_beyond_the_budget_takes_several_steps() -> None:
    scheduler = make_scheduler()
    scheduler.enqueue(make_request("a", 19))
    assert [run(scheduler) for _ in range(3)] == [[("a", 8, 0)], [("a", 8, 0)], [("a", 3, 1)]]


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    scheduler = make_scheduler()
    scheduler.enqueue(make_request("short", 2))
    run(scheduler)
    scheduler.enqueue(make_request("long", 12))
    assert run(scheduler) == [("short", 1, 1), ("long", 7, 0)]
    assert run(scheduler) == [("short", 1, 1), ("long", 5, 1)]


def test_prompts_share_what_is_left_in_order_of_arrival() -> None:
    scheduler = make_scheduler()
    for name in ("a", "b", "c"):
        scheduler.enqueue(make_request(name, 6))
    assert run(scheduler) == [("a", 6, 1), ("b", 2, 0)]
    assert run(scheduler) == [("a", 1, 1), ("b", 4, 1), ("c", 3, 0)]


def test_requests_beyond_the_sequences_wait_for_their_turn() -> None:
    scheduler = make_scheduler(max_sequences=1)
    scheduler.enqueue(make_request("a", 2))
    scheduler.enqueue(make_request("b", 2))
    assert run(scheduler) == [("a", 2, 1)]
    scheduler.cancel("a")
    assert run(scheduler) == [("b", 2, 1)]


def test_the_last_prompt_token_and_its_draft_stay_in_one_chunk() -> None:
    sequence = sequence_of(make_request("a", 10, draft=(1, 2, 3)))
    assert [len(next_chunk(sequence, budget)[0]) for budget in (13, 12, 9, 4, 1)] == [13, 9, 9, 4, 1]
    assert next_chunk(sequence, 13)[1] == 4
    assert next_chunk(sequence, 12)[1] == 0


def test_a_draft_larger_than_the_budget_is_still_verified() -> None:
    sequence = sequence_of(make_request("a", 1, draft=(1, 2, 3)))
    assert next_chunk(sequence, 2) == ([97000, 1, 2, 3], 4)


def test_drafts_take_no_row_that_another_sequence_needs() -> None:
    scheduler = make_scheduler(max_sequences=3)
    for name in ("a", "b"):
        scheduler.enqueue(make_request(name, 1))
    assert run(scheduler) == [("a", 1, 1), ("b", 1, 1)]
    for name in ("a", "b"):
        scheduler.running(name).take_draft((1,) * 7, None)  # type: ignore[union-attr]
    scheduler.enqueue(make_request("prompt", 4))
    assert run(scheduler) == [("a", 6, 6), ("b", 1, 1), ("prompt", 1, 0)]


def test_a_draft_ends_where_a_pass_of_its_cache_ends() -> None:
    scheduler = make_scheduler(max_num_tokens=4)
    scheduler.enqueue(make_request("a", 2, draft=(1,) * 9))
    assert run(scheduler) == [("a", 1, 0)]
    assert run(scheduler) == [("a", 4, 4)]


def test_a_reused_prefix_is_not_computed_again() -> None:
    sequence = sequence_of(make_request("a", 10), num_reused=7)
    assert len(next_chunk(sequence, 8)[0]) == 3


def test_settling_a_draft_rewinds_to_the_last_token_that_was_an_input_and_stayed() -> None:
    sequence = sequence_of(make_request("a", 4, draft=(1, 2, 3)))
    for token in (1, 9):
        sequence.append(token)
    outcome = sequence.settle(2)
    assert outcome is not None and (outcome.num_draft_tokens, outcome.num_accepted_tokens) == (3, 1)
    assert sequence.num_computed == 5  # four prompt tokens and the accepted draft
    assert sequence.pending() == [9]


def test_occurrences_are_counted_only_when_penalties_need_them() -> None:
    plain = sequence_of(GenerationRequest("a", (1, 1, 2), 5))
    counting = sequence_of(GenerationRequest("a", (1, 1, 2), 5, SamplingParams(repetition_penalty=1.1)))
    for sequence in (plain, counting):
        sequence.append(2)
    assert plain.counts == {}
    assert counting.counts == {1: 2, 2: 2}


def names(work: list[tuple[str, int, int]]) -> list[str]:
    return [name for name, _, _ in work]


def test_a_request_waits_until_its_prompt_has_blocks_and_nobody_overtakes_it() -> None:
    scheduler = make_scheduler(num_blocks=5)
    scheduler.enqueue(make_request("a", 8))
    scheduler.enqueue(make_request("b", 12))
    scheduler.enqueue(make_request("c", 1))
    assert names(run(scheduler)) == ["a"]
    assert names(run(scheduler)) == ["a"]
    scheduler.cancel("a")
    assert names(run(scheduler)) == ["b"]


def test_admission_leaves_a_block_for_each_sequence_that_grows() -> None:
    scheduler = make_scheduler(num_blocks=3)
    scheduler.enqueue(make_request("a", 4))
    scheduler.enqueue(make_request("b", 8))
    assert names(run(scheduler)) == ["a"]
    assert names(run(scheduler)) == ["a"], "b would fit, but a needs one of the blocks"


def test_the_youngest_gives_way_and_comes_back_with_its_answer_so_far() -> None:
    scheduler = make_scheduler(num_blocks=4)
    for name in ("a", "b"):
        scheduler.enqueue(make_request(name, 4))
    assert names(run(scheduler)) == ["a", "b"]
    for _ in range(4):
        assert names(run(scheduler)) == ["a", "b"]
    assert names(run(scheduler)) == ["a"], "both would need a third block"
    for _ in range(3):
        assert names(run(scheduler)) == ["a"]
    scheduler.finish(scheduler.running("a"))  # type: ignore[arg-type]
    assert run(scheduler) == [("b", 8, 0)]
    assert run(scheduler) == [("b", 1, 1)]
    assert scheduler.running("b").num_preemptions == 1  # type: ignore[union-attr]


def test_a_preempted_sequence_is_served_before_those_that_came_after_it() -> None:
    scheduler = make_scheduler(num_blocks=4)
    for name in ("a", "b", "c"):
        scheduler.enqueue(make_request(name, 4))
    for _ in range(6):
        assert "c" not in names(run(scheduler))
    scheduler.cancel("a")
    assert names(run(scheduler)) == ["b"]


def test_cancelling_a_waiting_request_touches_no_blocks() -> None:
    scheduler = make_scheduler(max_sequences=1)
    for name in ("a", "b"):
        scheduler.enqueue(make_request(name, 4))
    run(scheduler)
    assert scheduler.cancel("b").request.request_id == "b"
    scheduler.check()
    assert not scheduler.knows("b")


def sharing_scheduler(reuse: ReuseRule) -> Scheduler:
    return Scheduler(BlockTables(BlockPool(60), 16, reuse, num_new_tokens=64), max_sequences=4, max_num_tokens=64)


def of_prompt(name: str, token_ids: range, *, context_logits: bool = False) -> GenerationRequest:
    return GenerationRequest(name, tuple(token_ids), 10, returns=Returns(context_logits=context_logits))


def test_a_prompt_that_another_is_computing_waits_and_finds_it() -> None:
    scheduler = sharing_scheduler("tokens")
    for name in ("a", "a-1", "a-2"):
        scheduler.enqueue(of_prompt(name, range(40)))
    assert run(scheduler) == [("a", 40, 1)]
    assert run(scheduler) == [("a", 1, 1), ("a-1", 1, 1), ("a-2", 1, 1)]


def test_a_prompt_waits_for_all_chunks_of_the_one_that_it_shares() -> None:
    scheduler = sharing_scheduler("tokens")
    scheduler.enqueue(of_prompt("a", range(100)))
    scheduler.enqueue(of_prompt("b", range(110)))
    assert run(scheduler) == [("a", 64, 0)]
    assert run(scheduler) == [("a", 36, 1)]
    assert run(scheduler) == [("a", 1, 1), ("b", 10, 1)]


@pytest.mark.parametrize(
    "other",
    [
        of_prompt("b", range(20)),  # little is shared
        of_prompt("b", range(1, 41)),  # at other positions
        of_prompt("b", range(40), context_logits=True),  # has to be computed whole
    ],
)
def test_a_prompt_that_gains_little_does_not_wait(other: GenerationRequest) -> None:
    scheduler = sharing_scheduler("tokens")
    scheduler.enqueue(of_prompt("a", range(40)))
    scheduler.enqueue(other)
    assert names(run(scheduler)) == ["a", "b"]


def test_without_reuse_of_what_still_runs_nobody_waits() -> None:
    scheduler = sharing_scheduler("full_blocks")
    for name in ("a", "b"):
        scheduler.enqueue(of_prompt(name, range(32)))
    assert run(scheduler) == [("a", 32, 1), ("b", 32, 1)]
