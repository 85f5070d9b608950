#!/bin/sh
# plain mode: the llmapi model starts a worker for every rank itself
set -eu
cd "$(dirname "$0")/.."
for file in model.py helpers.py; do [ -e model_repository/tensorrt_llm/1/$file ] || cp /app/all_models/llmapi/tensorrt_llm/1/$file model_repository/tensorrt_llm/1/; done
exec tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002
