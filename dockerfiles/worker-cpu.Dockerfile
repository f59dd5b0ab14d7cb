# The worker for CPUs, with the examples' model, data and code under /workspace: a first job needs no storage.
# torch without CUDA's libraries (cuda_stubs.py): it cannot use a device. About 2 GB. PACKAGES=worker-vllm-cpu has vLLM
# besides. From the checkout's root: docker build -f dockerfiles/worker-cpu.Dockerfile -t rljob-worker-cpu .
#     docker build -f dockerfiles/worker-cpu.Dockerfile --build-arg PACKAGES=worker-vllm-cpu -t rljob-worker-vllm-cpu .
ARG BASE_IMAGE=python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76
ARG PACKAGES=worker-cpu

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

FROM ${BASE_IMAGE} AS worker-cpu

# what vLLM's kernels are linked against
FROM ${BASE_IMAGE} AS worker-vllm-cpu
RUN set -e; apt-get update; apt-get install -y --no-install-recommends libnuma1; rm -rf /var/lib/apt/lists/*

FROM ${PACKAGES} AS packages
RUN --mount=type=bind,from=pins,source=/tools,target=/tools --mount=type=secret,id=ca \
    --mount=type=cache,target=/root/.cache/uv set -e; \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
    UV_LINK_MODE=copy /tools/bin/uv pip install --quiet --system --compile-bytecode --no-deps \
        --require-hashes --requirement /tools/requirements.txt

FROM packages AS stubs
RUN set -e; apt-get update; apt-get install -y --no-install-recommends gcc
COPY dockerfiles/cuda_stubs.py /
RUN python /cuda_stubs.py /usr/local/lib/python3*/*-packages/torch/lib /stubs

FROM packages AS runtime
RUN --mount=type=bind,from=stubs,source=/stubs,target=/stubs cp /stubs/* /usr/local/lib/python3*/*-packages/torch/lib/
# the base image has Python's own library without bytecode: every process would compile what it imports when it starts
RUN python -m compileall -q -x '/(site-packages|tests?|idlelib|lib2to3)/' \
        "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# torch looks its user up by number; relative paths of a job begin in /workspace, where its storage is mounted
RUN echo 'rljob:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd && install -d -o 65532 -g 65532 /workspace
WORKDIR /workspace
# a number, so that runAsNonRoot can be checked
USER 65532:65532
# threads that spin while they wait starve the other workers of a small machine
ENV HOME=/tmp HF_HOME=/workspace/.cache/huggingface PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE

# the tiny model where the builder has it already, given as a build context of this name; else nothing
FROM scratch AS tiny

# the tiny model learns to read and write, unless what was given holds this very recipe
FROM runtime AS examples
COPY worker/rljob_worker/__init__.py worker/rljob_worker/built_once.py /source/rljob_worker/
COPY worker/rljob_worker/tiny /source/rljob_worker/tiny
COPY --from=tiny --chown=65532:65532 / /tiny/
RUN cp -r /tiny /workspace/arithmetic && PYTHONPATH=/source python -m rljob_worker.tiny --out /workspace/arithmetic
COPY examples/*.py /workspace/

FROM runtime
COPY --from=examples --chown=65532:65532 /workspace /workspace
USER root
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    PYTHONDONTWRITEBYTECODE=1 pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --no-deps --no-index /wheel/*.whl
USER 65532:65532
# process 1 of the pod: it starts the workers, forwards signals and reaps what they leave behind
ENTRYPOINT ["python", "-m", "rljob_worker.launcher"]
