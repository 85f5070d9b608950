#!/bin/sh
# the same model behind trtllm-serve
set -eu
cd "$(dirname "$0")/.."
exec trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP8 \
  --backend pytorch \
  --host 0.0.0.0 \
  --port 8000 \
  --extra_llm_api_options launch/trtllm-serve.yaml
