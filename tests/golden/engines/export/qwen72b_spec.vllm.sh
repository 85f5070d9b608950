# note: speculation.acceptance: vLLM always samples by rejection; for greedy requests that is the same
# note: serving: one port for OpenAI's API; there is no gRPC
vllm serve Qwen/Qwen2.5-72B-Instruct \
  --dtype bfloat16 \
  --quantization fp8 \
  --tensor-parallel-size 4 \
  --pipeline-parallel-size 1 \
  --max-num-seqs 8 \
  --max-model-len 10240 \
  --kv-cache-dtype auto \
  --block-size 32 \
  --enable-prefix-caching \
  --speculative-config '{"method": "draft_model", "model": "Qwen/Qwen2.5-1.5B-Instruct", "num_speculative_tokens": 4, "draft_tensor_parallel_size": 1, "quantization": "fp8"}' \
  --port 8000
