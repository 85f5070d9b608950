#!/bin/sh
# plain mode: the llmapi model starts a worker for every rank itself
set -eu
cd "$(dirname "$0")/.."
installed=$(python3 -c 'from importlib.metadata import version; print(version("tensorrt-llm"))' 2>/dev/null || echo none)
case "$installed" in
  1.2.1|1.2.1.[0-9]*|1.2.1+*) ;;
  *) echo "RUN-VERSION: this build is for TensorRT-LLM 1.2.1, this machine has $installed; run it in nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" >&2
     exit 3 ;;
esac
for file in model.py helpers.py; do [ -e model_repository/tensorrt_llm/1/$file ] || cp /app/all_models/llmapi/tensorrt_llm/1/$file model_repository/tensorrt_llm/1/; done
exec tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002
