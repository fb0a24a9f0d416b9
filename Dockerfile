# mtformer for training and serving. Two variants, which docs/deployment.md describes:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu -t mtformer:cpu .
#   docker build -t mtformer:cuda .
FROM python:3.12.12-slim-bookworm

# PyTorch's default wheel for Linux contains the CUDA libraries; with this address, pip prefers the CPU build.
ARG PIP_EXTRA_INDEX_URL=""

# Triton, which compiles models on GPUs, calls a C compiler.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in constraints.txt README.md CHANGELOG.md CITATION.cff LICENSE LICENSE-Unicode.txt ./
COPY configs configs
COPY mtformer mtformer
RUN pip install --no-cache-dir -c constraints.txt ".[serve,ctranslate2,tmx,langid]" \
    && rm -rf /src \
    && useradd --uid 10001 --create-home mtformer \
    && install --directory --owner mtformer /data

# Configs, corpora and runs are in the folder that is mounted here.
WORKDIR /data
USER mtformer
ENV MTFORMER_CACHE=/data/.cache/mtformer
EXPOSE 8000
ENTRYPOINT ["mtformer"]
CMD ["--help"]
