# note: serving: one port for OpenAI's API; there is no gRPC
vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 \
  --dtype bfloat16 \
  --tensor-parallel-size 4 \
  --pipeline-parallel-size 1 \
  --enable-expert-parallel \
  --max-num-seqs 16 \
  --max-model-len 5120 \
  --kv-cache-dtype auto \
  --block-size 32 \
  --enable-prefix-caching \
  --port 8000
