# note: speculation.acceptance: vLLM always samples by rejection; for greedy requests that is the same
# note: serving: one port for OpenAI's API; there is no gRPC
vllm serve HuggingFaceTB/SmolLM2-135M-Instruct \
  --dtype bfloat16 \
  --tensor-parallel-size 1 \
  --pipeline-parallel-size 1 \
  --max-num-seqs 8 \
  --max-model-len 1536 \
  --kv-cache-dtype auto \
  --block-size 32 \
  --enable-prefix-caching \
  --speculative-config '{"method": "draft_model", "model": "trtkit/smollm2-draft", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1}' \
  --port 8000
