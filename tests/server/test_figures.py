"""The counters of /metrics, and the line that `trtkit serve --follow` prints."""

import pytest
from trtkit.errors import ServerError
from trtkit.server.endpoints import free_endpoints
from trtkit.server.figures import describe_change, parse_counters, read_counters

PAGE = """# HELP trtkit_answers Answers that came to an end
# TYPE trtkit_answers counter
trtkit_answers{model="tensorrt_llm_bls"} 3
trtkit_output_tokens{model="tensorrt_llm_bls"} 60
trtkit_target_passes{model="tensorrt_llm_bls"} 20
trtkit_draft_tokens{model="tensorrt_llm_bls"} 70
trtkit_accepted_draft_tokens{model="tensorrt_llm_bls"} 35
trtkit_evicted_tokens{model="tensorrt_llm_bls"} 16
trtkit_engine_prompt_tokens{model="tensorrt_llm"} 1000
trtkit_engine_reused_tokens{model="tensorrt_llm"} 900
nv_inference_count{model="ensemble",version="1"} 5
"""


def test_trtkits_counters_are_read_by_name_and_model() -> None:
    counters = parse_counters(PAGE)
    assert len(counters) == 8
    assert counters["answers", "tensorrt_llm_bls"] == 3


def test_a_line_says_what_happened_in_between() -> None:
    after = parse_counters(PAGE)
    before = {name: value / 2 for name, value in after.items()}
    assert describe_change(before, after, 2.0) == (
        "2 answers, 15.0 tokens/s, 50% of drafts accepted, draft length 3.5, 90% of prompt tokens reused, "
        "8 tokens evicted"
    )


def test_without_answers_or_after_a_restart_there_is_nothing_to_say() -> None:
    after = parse_counters(PAGE)
    assert describe_change(after, after, 1.0) is None
    assert describe_change(after, dict.fromkeys(after, 0.0), 1.0) is None


def test_a_server_without_metrics_is_named_with_the_option() -> None:
    with pytest.raises(ServerError, match=r"(?s)METRICS: .*--metrics-port"):
        read_counters(free_endpoints())
