"""trtkit's own Prometheus counters, declared once: name -> help text. Knows names; triton_io counts."""

BLS_COUNTERS = {
    "trtkit_answers": "Answers that came to an end",
    "trtkit_prompt_tokens": "Prompt tokens of these answers",
    "trtkit_output_tokens": "Tokens of these answers",
    "trtkit_target_passes": "Passes of the target over these answers",
    "trtkit_draft_tokens": "Draft tokens that the target was shown",
    "trtkit_accepted_draft_tokens": "Draft tokens that the target accepted",
    "trtkit_evicted_tokens": "Tokens that rolling windows dropped",
}
LLM_COUNTERS = {
    "trtkit_engine_requests": "Requests that the engine finished",
    "trtkit_engine_prompt_tokens": "Prompt tokens of these requests",
    "trtkit_engine_reused_tokens": "Prompt tokens whose keys and values were found in the cache",
}
