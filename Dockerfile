# The service and its default model. For an NVIDIA GPU (see docker-compose.yml), PyPI's own build of
# torch brings CUDA along, and Triton needs a C compiler and Python.h at run time:
#   docker build --build-arg TORCH_INDEX=https://pypi.org/simple --build-arg EXTRAS=gpu \
#                --build-arg APT_PACKAGES="gcc libc6-dev" .
# Any Debian-like base with Python 3.11 or newer, its venv module and CA certificates will do; for a
# GPU, APT_PACKAGES must bring its Python.h (python3-dev in Debian), unless the base has it.
ARG BASE_IMAGE=python:3.12-slim-bookworm

# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS dependencies
# Empty for the build for CPUs, from PyTorch's own index.
ARG TORCH_INDEX=""
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    UV_COMPILE_BYTECODE=1
RUN python3 -m venv /opt/partywall
ENV PATH=/opt/partywall/bin:$PATH
WORKDIR /src
COPY constraints.txt install.py pyproject.toml ./
# hadolint ignore=SC2086
RUN python install.py ${EXTRAS} \
    && pip uninstall --yes uv

FROM dependencies AS package
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY README.md LICENSE setup.py ./
COPY kernels kernels
COPY engine engine
COPY tenants tenants
COPY app app
# A package without its compiled part would work, slowly: not what an image is for.
RUN pip wheel --no-deps --wheel-dir /wheel . \
    && python -c 'import sys, zipfile; sys.exit(not any("kernels/native/_library" in name for name in zipfile.ZipFile(sys.argv[1]).namelist()))' /wheel/*.whl

# hadolint ignore=DL3006
FROM ${BASE_IMAGE}
ARG APT_PACKAGES=""
# hadolint ignore=DL3008,SC2086
RUN if [ -n "${APT_PACKAGES}" ]; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends ${APT_PACKAGES} \
        && rm -rf /var/lib/apt/lists/*; \
    fi
# Everything that is ever written lies in these two folders (and in /tmp), so that the root file
# system can be read-only; volumes that are mounted there start with their owner.
RUN groupadd --gid 10001 partywall \
    && useradd --uid 10001 --gid partywall --no-create-home --home-dir /var/lib/partywall partywall \
    && install -d -m 0700 -o partywall -g partywall /var/lib/partywall /var/cache/partywall
ENV PATH=/opt/partywall/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PARTYWALL_HOST=0.0.0.0 \
    PARTYWALL_DATA_DIR=/var/lib/partywall \
    PARTYWALL_CACHE_DIR=/var/cache/partywall \
    HF_HOME=/var/cache/partywall/huggingface \
    TRITON_CACHE_DIR=/var/cache/partywall/triton
# Dependencies are large and change rarely: they have a layer of their own.
COPY --from=dependencies /opt/partywall /opt/partywall
# Better found out here than by the first request: Triton compiles a small module when it starts.
RUN if python -c 'import triton' 2>/dev/null \
    && ! gcc -fsyntax-only -x c "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"; then \
        echo "Triton needs gcc and Python.h: add them to APT_PACKAGES (gcc libc6-dev python3-dev)" >&2; exit 1; \
    fi
RUN --mount=type=bind,from=package,source=/wheel,target=/wheel \
    pip install --no-cache-dir --no-deps /wheel/*.whl
USER 10001:10001
WORKDIR /var/lib/partywall
EXPOSE 8000 8001
ENTRYPOINT ["partywall"]
CMD ["serve"]
