"""Which tokens are still read, and how many blocks that can be."""

from hypothesis import given
from hypothesis import strategies as st
from trtkit.reference.kv_cache.retention import Retention


def test_without_a_window_everything_is_kept() -> None:
    assert Retention().first_kept(1000) == 0
    assert Retention().max_blocks(1000, 64, 64) == 16


def test_a_window_counts_the_token_that_reads() -> None:
    assert [Retention(window_tokens=4).first_kept(at) for at in (0, 3, 4, 10)] == [0, 0, 1, 7]


@given(
    window=st.integers(1, 50),
    sinks=st.integers(0, 10),
    heavy=st.integers(0, 10),
    num_new=st.integers(1, 20),
    block_size=st.sampled_from([1, 2, 4, 8, 16]),
    computed=st.integers(0, 200),
)
def test_no_sequence_touches_more_blocks_than_stated(
    window: int, sinks: int, heavy: int, num_new: int, block_size: int, computed: int
) -> None:
    retention = Retention(window, sinks, heavy)
    end = computed + num_new
    touched = {
        token // block_size for token in (*range(min(sinks + heavy, end)), *range(retention.first_kept(computed), end))
    }
    assert len(touched) <= retention.max_blocks(end, num_new, block_size)
