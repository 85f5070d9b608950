#!/bin/sh
# prespawned mode: draft logits go over MPI: 4 processes, the first orchestrates
set -eu
export TRTLLM_ORCHESTRATOR=1
export TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=0
cd "$(dirname "$0")/.."
exec mpirun \
  --allow-run-as-root -n 1 tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --disable-auto-complete-config \
  --backend-config=python,shm-region-prefix-name=prefix0_ \
  : -n 1 tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --model-control-mode=explicit \
  --load-model=tensorrt_llm \
  --load-model=tensorrt_llm_draft \
  --disable-auto-complete-config \
  --backend-config=python,shm-region-prefix-name=prefix1_ \
  : -n 1 tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --model-control-mode=explicit \
  --load-model=tensorrt_llm \
  --load-model=tensorrt_llm_draft \
  --disable-auto-complete-config \
  --backend-config=python,shm-region-prefix-name=prefix2_ \
  : -n 1 tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --model-control-mode=explicit \
  --load-model=tensorrt_llm \
  --load-model=tensorrt_llm_draft \
  --disable-auto-complete-config \
  --backend-config=python,shm-region-prefix-name=prefix3_
