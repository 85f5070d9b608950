#!/bin/sh
# the server in nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3
set -eu
exec docker run \
  --rm \
  --gpus all \
  --ipc=host \
  --ulimit memlock=-1 \
  --ulimit stack=67108864 \
  --publish 8000:8000 \
  --publish 8001:8001 \
  --publish 8002:8002 \
  --volume BUILDS/qwen72b_spec:/build \
  --volume PACKAGE:/opt/trtkit:ro \
  --workdir /build \
  --env PYTHONPATH=/opt/trtkit nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 sh launch/serve.sh
