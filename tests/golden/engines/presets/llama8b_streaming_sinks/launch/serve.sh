#!/bin/sh
# leader mode: one model on 1 rank: every rank is a tritonserver
set -eu
cd "$(dirname "$0")/.."
exec mpirun \
  --allow-run-as-root -n 1 tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --disable-auto-complete-config \
  --backend-config=python,shm-region-prefix-name=prefix0_
