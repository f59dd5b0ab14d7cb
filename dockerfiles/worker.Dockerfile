# The worker for NVIDIA devices: torch with CUDA's libraries, about 6 GB. PACKAGES=worker-vllm has vLLM besides, and
# PACKAGES=serve-cuda Ray Serve, for models beside a job.
# From the checkout's root: docker build -f dockerfiles/worker.Dockerfile -t rljob-worker .
#     docker build -f dockerfiles/worker.Dockerfile --build-arg PACKAGES=worker-vllm -t rljob-worker-vllm .
#     docker build -f dockerfiles/worker.Dockerfile --build-arg PACKAGES=serve-cuda -t rljob-serve-cuda .
ARG BASE_IMAGE=python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76
ARG PACKAGES=worker

# what installs packages and makes the wheel; like all packages, only files whose hashes are known
FROM ${BASE_IMAGE} AS tools
COPY dockerfiles/requirements/tools.txt /
RUN --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/pip set -e; \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    pip install --quiet --disable-pip-version-check --root-user-action=ignore --target /tools \
        --require-hashes --requirement /tools.txt

# a change of the code installs no package again
FROM tools AS pins
ARG PACKAGES
COPY dockerfiles/requirements/${PACKAGES}.txt /tools/requirements.txt

FROM tools AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY crds crds
COPY operator operator
COPY worker worker
RUN PYTHONPATH=/tools python -P -m hatchling build --target wheel --directory /wheel

FROM ${BASE_IMAGE} AS worker

# the operator says what runs in it
FROM ${BASE_IMAGE} AS serve-cuda

# vLLM's kernels are compiled where they run
FROM ${BASE_IMAGE} AS worker-vllm
RUN set -e; apt-get update; apt-get install -y --no-install-recommends g++; rm -rf /var/lib/apt/lists/*

FROM ${PACKAGES}
RUN --mount=type=bind,from=pins,source=/tools,target=/tools --mount=type=secret,id=ca \
    --mount=type=cache,target=/root/.cache/uv set -e; \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
    UV_LINK_MODE=copy /tools/bin/uv pip install --quiet --system --compile-bytecode --no-deps \
        --require-hashes --requirement /tools/requirements.txt
# the base image has Python's own library without bytecode: every process would compile what it imports when it starts
RUN python -m compileall -q -x '/(site-packages|tests?|idlelib|lib2to3)/' \
        "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    PYTHONDONTWRITEBYTECODE=1 pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --no-deps --no-index /wheel/*.whl
# torch looks its user up by number; relative paths of a job begin in /workspace, where its storage is mounted
RUN echo 'rljob:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd && install -d -o 65532 -g 65532 /workspace
WORKDIR /workspace
# a number, so that runAsNonRoot can be checked
USER 65532:65532
ENV HOME=/tmp HF_HOME=/workspace/.cache/huggingface PYTHONUNBUFFERED=1
# process 1 of the pod: it starts the workers, forwards signals and reaps what they leave behind
ENTRYPOINT ["python", "-m", "rljob_worker.launcher"]
