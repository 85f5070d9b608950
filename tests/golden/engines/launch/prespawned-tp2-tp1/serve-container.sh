#!/bin/sh
# the server in image:tag
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
  --volume /srv/build:/build \
  --volume /srv/package:/opt/trtkit:ro \
  --volume /srv/model:/srv/model:ro \
  --workdir /build \
  --env PYTHONPATH=/opt/trtkit image:tag sh launch/serve.sh
