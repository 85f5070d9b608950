#!/bin/sh
# leader mode: one model on 1 rank: every rank is a tritonserver
set -eu
cd "$(dirname "$0")/.."
installed=$(python3 -c 'from importlib.metadata import version; print(version("tensorrt-llm"))' 2>/dev/null || echo none)
case "$installed" in
  0.21.0|0.21.0.[0-9]*|0.21.0+*) ;;
  *) echo "RUN-VERSION: this build is for TensorRT-LLM 0.21.0, this machine has $installed; run it in nvcr.io/nvidia/tritonserver:25.08-trtllm-python-py3" >&2
     exit 3 ;;
esac
here=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | tr '\n' ' ')
case " $here" in
  " "|*" 89 "*) ;;
  *) echo "RUN-SM: the engines are for SM 89, this machine has SM ${here% }; build on such a GPU" >&2
     exit 3 ;;
esac
exec mpirun \
  --allow-run-as-root -n 1 tritonserver \
  --model-repository=model_repository \
  --http-port=8000 \
  --grpc-port=8001 \
  --metrics-port=8002 \
  --disable-auto-complete-config \
  --backend-config=python,shm-region-prefix-name=prefix0_
