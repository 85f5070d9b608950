# note: attention_sinks: vLLM keeps none; a session ends at --max-model-len
# note: speculation.adaptive: vLLM drafts with a fixed length
# note: speculation.acceptance: vLLM always samples by rejection; for greedy requests that is the same
# note: kv_cache.dtype fp8: without scales in the checkpoint vLLM uses 1.0
# note: serving: one port for OpenAI's API; there is no gRPC
vllm serve meta-llama/Llama-3.3-70B-Instruct \
  --dtype bfloat16 \
  --quantization fp8 \
  --tensor-parallel-size 4 \
  --pipeline-parallel-size 1 \
  --max-num-seqs 8 \
  --max-model-len 10240 \
  --kv-cache-dtype fp8 \
  --block-size 32 \
  --enable-prefix-caching \
  --speculative-config '{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1, "quantization": "fp8"}' \
  --port 8000
