# note: attention_sinks: vLLM keeps none; a session ends at --max-model-len
# note: kv_cache.dtype fp8: without scales in the checkpoint vLLM uses 1.0
# note: serving: one port for OpenAI's API; there is no gRPC
vllm serve meta-llama/Llama-3.1-8B-Instruct \
  --dtype bfloat16 \
  --quantization fp8 \
  --tensor-parallel-size 1 \
  --pipeline-parallel-size 1 \
  --max-num-seqs 4 \
  --max-model-len 8192 \
  --kv-cache-dtype fp8 \
  --block-size 32 \
  --no-enable-prefix-caching \
  --port 8000
