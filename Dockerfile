# Images of gguf-verify. docs/ci.md says how to run them.
#
#     docker build --tag gguf-verify .                          # the CPU host
#     docker build --tag gguf-verify:cuda --target cuda .       # and the GPU host: CuPy and NVRTC; the driver is the machine's
#
# llama.cpp is compiled for any x86-64 processor with AVX2, not for the one that builds. The images hold a C++ compiler,
# because the CPU host compiles kernels when they are verified.
ARG PYTHON=3.13.7-slim-bookworm

FROM python:${PYTHON} AS build
RUN apt-get update \
  && apt-get install --yes --no-install-recommends g++ \
  && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 CMAKE_ARGS=-DGGML_NATIVE=OFF
WORKDIR /source
COPY requirements requirements
# every file that is installed has the digest that requirements/ names
RUN python -m venv /opt/gguf-verify \
  && requirements/install /opt/gguf-verify/bin/python llama
COPY pyproject.toml README.md LICENSE ./
COPY harness harness
COPY kernels kernels
RUN /opt/gguf-verify/bin/python -m pip install --no-deps --no-build-isolation .

FROM build AS build-cuda
RUN requirements/install /opt/gguf-verify/bin/python cuda

FROM python:${PYTHON} AS runtime
LABEL org.opencontainers.image.title="gguf-verify" \
  org.opencontainers.image.description="Proves, on the bytes of a real GGUF model, that a kernel computes what llama.cpp computes" \
  org.opencontainers.image.licenses="MIT"
RUN apt-get update \
  && apt-get install --yes --no-install-recommends g++ libgomp1 \
  && rm -rf /var/lib/apt/lists/* \
  && useradd --create-home --uid 10001 gguf
ENV PATH=/opt/gguf-verify/bin:$PATH
# compiled kernels are kept in the home folder; models are mounted here
WORKDIR /work
ENTRYPOINT ["gguf-verify"]
CMD ["--help"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/gguf-verify /opt/gguf-verify
USER 10001

FROM runtime AS cpu
COPY --from=build /opt/gguf-verify /opt/gguf-verify
USER 10001
