"""Cache options: what is in range, and that every wrong value is named at once."""

from dataclasses import fields

import pytest
from trtkit.errors import InputError
from trtkit.reference.kv_cache.options import CacheOptions

WRONG = {
    "block_size": (CacheOptions(block_size=24), "power of two, got 24"),
    "no block": (CacheOptions(block_size=0), "power of two, got 0"),
    "num_blocks": (CacheOptions(num_blocks=0), "num_blocks must be at least 1"),
    "window_tokens": (CacheOptions(window_tokens=0), "window_tokens must be at least 1"),
    "sink_tokens": (CacheOptions(sink_tokens=-1), "sink_tokens must be at least 0"),
    "heavy_tokens": (CacheOptions(window_tokens=9, heavy_tokens=-1), "heavy_tokens must be at least 0"),
    "heavy hitters alone": (CacheOptions(heavy_tokens=4, reuse="off"), "heavy_tokens needs window_tokens"),
    "heavy hitters shared": (CacheOptions(heavy_tokens=4, window_tokens=9), 'heavy_tokens needs reuse="off"'),
    "dtype": (CacheOptions("int3"), "dtype must be one of auto, float, fp8, int8, int4, got int3"),  # type: ignore[arg-type]
    "reuse": (CacheOptions(reuse="on"), "reuse must be one of off, full_blocks, tokens, got on"),  # type: ignore[arg-type]
    "sinks alone": (CacheOptions(sink_tokens=4), "sink_tokens needs window_tokens"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_value_out_of_range_is_named(what: str) -> None:
    options, message = WRONG[what]
    with pytest.raises(InputError, match=message) as caught:
        options.check()
    assert caught.value.code == "KV-OPTIONS"


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(InputError, match=r"(?s)got 3; num_blocks"):
        CacheOptions(block_size=3, num_blocks=0).check()


def test_the_default_and_a_full_set_are_in_range() -> None:
    CacheOptions().check()
    CacheOptions("int4", 32, 10, "full_blocks", window_tokens=1, sink_tokens=1).check()
    CacheOptions("fp8", 32, 10, "off", window_tokens=1, sink_tokens=1, heavy_tokens=1).check()
    assert len(fields(CacheOptions)) == 7
