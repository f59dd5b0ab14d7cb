# The data buffer, the sidecar of every worker: Arrow, no torch.
# From the checkout's root: docker build -f dockerfiles/databuffer.Dockerfile -t rljob-databuffer .
ARG BASE_IMAGE=python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76

# what installs packages and makes the wheel; like all packages, only files whose hashes are known
FROM ${BASE_IMAGE} AS tools
COPY dockerfiles/requirements/tools.txt /
RUN --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/pip set -e; \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    pip install --quiet --disable-pip-version-check --root-user-action=ignore --target /tools \
        --require-hashes --requirement /tools.txt

# a change of the code installs no package again
FROM tools AS pins
COPY dockerfiles/requirements/databuffer.txt /tools/requirements.txt

FROM tools AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY crds crds
COPY operator operator
COPY worker worker
RUN PYTHONPATH=/tools python -P -m hatchling build --target wheel --directory /wheel

FROM ${BASE_IMAGE}
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
# a number, so that runAsNonRoot can be checked
USER 65532:65532
ENV HOME=/tmp PYTHONUNBUFFERED=1
ENTRYPOINT ["python", "-m", "rljob_worker.databuffer"]
