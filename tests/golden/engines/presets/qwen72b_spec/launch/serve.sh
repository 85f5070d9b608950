#!/bin/sh
# orchestrator mode: two models with 4 and 1 ranks: one tritonserver spawns a worker for each; it costs a hop between processes per step, and runs on one node
set -eu
export TRTLLM_ORCHESTRATOR=1
export TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1
cd "$(dirname "$0")/.."
exec mpirun \
  --allow-run-as-root -n 1 tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --disable-auto-complete-config \
  --backend-config=python,shm-region-prefix-name=prefix0_ \
  --pinned-memory-pool-byte-size=0 \
  --enable-peer-access=false \
  --cuda-memory-pool-byte-size=0:0 \
  --cuda-memory-pool-byte-size=1:0 \
  --cuda-memory-pool-byte-size=2:0 \
  --cuda-memory-pool-byte-size=3:0
