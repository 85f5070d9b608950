# note: speculation.acceptance: vLLM always samples by rejection; for greedy requests that is the same
# note: kv_cache.dtype fp8: without scales in the checkpoint vLLM uses 1.0
# note: serving: one port for OpenAI's API; there is no gRPC
vllm serve nvidia/Llama-3.3-70B-Instruct-FP8 \
  --dtype bfloat16 \
  --tensor-parallel-size 4 \
  --pipeline-parallel-size 1 \
  --max-num-seqs 8 \
  --max-model-len 10240 \
  --kv-cache-dtype fp8 \
  --block-size 32 \
  --no-enable-prefix-caching \
  --speculative-config '{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 4}' \
  --port 8000
