"""Slots: who owns which, what they hold, and which prefix a new prompt may start from."""

import random

import pytest
from trtkit.reference.kv_cache.prefix import common_prefix
from trtkit.reference.kv_cache.slots import Placement, SlotPool


def finish(pool: SlotPool, placement: Placement, token_ids: list[int]) -> None:
    """Let the owner compute token_ids and go."""
    pool.commit(placement.slot, token_ids, len(token_ids))
    pool.release(placement.slot)


def acquire(pool: SlotPool, prompt_ids: list[int]) -> Placement:
    placement = pool.acquire(prompt_ids)
    assert placement is not None
    return placement


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 600])
def test_the_common_prefix_ends_at_the_first_difference(length: int) -> None:
    left = list(range(1000))
    right = [*range(length), -1, *range(length + 1, 1000)]
    assert common_prefix(left, right, 1000) == length
    assert common_prefix(left, left, length) == length


def test_a_new_pool_reuses_nothing() -> None:
    assert acquire(SlotPool(2, 100), [1, 2, 3]).num_reused == 0


def test_when_all_slots_are_owned_there_is_none() -> None:
    pool = SlotPool(1, 100)
    acquire(pool, [1])
    assert pool.acquire([2]) is None
    assert pool.num_free == 0


def test_the_last_prompt_token_is_always_left_to_compute() -> None:
    pool = SlotPool(1, 100)
    finish(pool, acquire(pool, [1, 2, 3]), [1, 2, 3])
    assert acquire(pool, [1, 2, 3]).num_reused == 2


def test_tokens_that_were_rewound_are_not_reused() -> None:
    pool = SlotPool(1, 100)
    placement = acquire(pool, [1, 2, 3])
    pool.commit(placement.slot, [1, 2, 3, 4, 5], 5)
    pool.commit(placement.slot, [1, 2, 3, 9], 3)
    pool.release(placement.slot)
    assert acquire(pool, [1, 2, 3, 4, 5, 6]).num_reused == 3


def test_the_longest_prefix_wins() -> None:
    pool = SlotPool(2, 100)
    short, long = acquire(pool, [1, 2]), acquire(pool, [1, 2, 3, 4])
    finish(pool, short, [1, 2])
    finish(pool, long, [1, 2, 3, 4])
    placement = acquire(pool, [1, 2, 3, 4, 5])
    assert placement == Placement(long.slot, 4, copy_from=None)


def test_a_short_prefix_of_a_long_conversation_is_copied_out_of_it() -> None:
    pool = SlotPool(2, 100)
    conversation = acquire(pool, [1])
    finish(pool, conversation, [1, 2, *range(50, 70)])
    placement = acquire(pool, [1, 2, 99])
    assert placement.copy_from == conversation.slot
    assert placement.slot != conversation.slot
    assert acquire(pool, [1, 2, *range(50, 70), 5]).num_reused == 22, "the conversation is still there"


def test_a_running_owner_lends_its_prefix() -> None:
    pool = SlotPool(2, 100)
    owner = acquire(pool, [1, 2, 3])
    pool.commit(owner.slot, [1, 2, 3], 3)
    assert acquire(pool, [1, 2, 3, 4]) == Placement(1 - owner.slot, 3, copy_from=owner.slot)


def test_the_slot_that_was_released_longest_ago_is_overwritten() -> None:
    pool = SlotPool(2, 100)
    first, second = acquire(pool, [1]), acquire(pool, [2])
    finish(pool, second, [2, 2])
    finish(pool, first, [1, 1])
    assert acquire(pool, [3]).slot == second.slot


def test_without_reuse_a_released_slot_is_empty() -> None:
    pool = SlotPool(1, 100, reuse=False)
    finish(pool, acquire(pool, [1, 2, 3]), [1, 2, 3])
    assert acquire(pool, [1, 2, 3]).num_reused == 0
    pool.check()


def test_after_ten_thousand_random_operations_no_slot_is_lost() -> None:
    chance = random.Random(0)
    pool, owned = SlotPool(5, 40), {}
    for _ in range(10_000):
        prompt = [chance.randrange(3) for _ in range(chance.randint(1, 12))]
        placement = pool.acquire(prompt) if chance.random() < 0.5 else None
        if placement is not None:
            assert placement.slot not in owned
            assert placement.num_reused < len(prompt)
            owned[placement.slot] = prompt + [chance.randrange(3) for _ in range(chance.randint(0, 20))]
        elif owned:
            slot = chance.choice(list(owned))
            token_ids = owned.pop(slot)
            pool.commit(slot, token_ids, chance.randint(0, len(token_ids)))
            pool.release(slot)
        pool.check()
        assert pool.num_free == 5 - len(owned)
