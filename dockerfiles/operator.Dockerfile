# The operator. From the checkout's root: docker build -f dockerfiles/operator.Dockerfile -t rljob-operator .
ARG BASE_IMAGE=python:3.11-slim

# what to install: every package of the extra at the version that constraints.txt pins. A change of pyproject.toml that
# changes no pin installs nothing again.
FROM ${BASE_IMAGE} AS pins
RUN --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/pip set -e; \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    pip install --quiet --disable-pip-version-check --root-user-action=ignore --target /tools uv==0.13.9
WORKDIR /source
COPY pyproject.toml constraints.txt ./
RUN --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/uv set -e; \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
    /tools/bin/uv pip compile --quiet --no-header --no-annotate --constraint constraints.txt --extra operator \
        pyproject.toml --output-file /tools/requirements.txt

FROM pins AS wheel
COPY README.md LICENSE ./
COPY client client
COPY crds crds
COPY operator operator
COPY worker worker
RUN --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/uv set -e; \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
    /tools/bin/uv build --quiet --wheel --out-dir /wheel

FROM ${BASE_IMAGE}
RUN --mount=type=bind,from=pins,source=/tools,target=/tools --mount=type=secret,id=ca \
    --mount=type=cache,target=/root/.cache/uv set -e; \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
    UV_LINK_MODE=copy /tools/bin/uv pip install --quiet --system --compile-bytecode --no-deps \
        --requirement /tools/requirements.txt
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    PYTHONDONTWRITEBYTECODE=1 pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --no-deps --no-index /wheel/*.whl
# a number, so that runAsNonRoot can be checked
USER 65532:65532
ENV HOME=/tmp PYTHONUNBUFFERED=1
ENTRYPOINT ["python", "-m", "rljob_operator"]
