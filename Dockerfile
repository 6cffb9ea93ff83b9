# docker build -t rksp . && docker run --rm -v "$PWD:/run-files:ro" rksp score gpt2 --lr 6e-4
# The base is named by its tag; an image that can be built again names it by its digest:
#   docker build --build-arg PYTHON=python:3.12-slim@sha256:… -t rksp .
ARG PYTHON=python:3.12-slim

FROM ${PYTHON} AS build
WORKDIR /source
COPY . .
RUN python -m pip install --no-cache-dir --no-deps --require-hashes -r .ci/uv.hashes.txt
ENV UV_NO_CACHE=1 UV_PYTHON=/opt/rksp/bin/python
RUN python -m venv /opt/rksp \
    && uv pip install --no-deps --require-hashes -r constraints.hashes.txt \
    && uv pip install --torch-backend=cpu -c constraints.txt torch \
    && uv pip install --no-deps -b constraints.txt .

FROM ${PYTHON}
COPY --from=build /opt/rksp /opt/rksp
RUN useradd --create-home rksp
USER rksp
WORKDIR /run-files
ENTRYPOINT ["/opt/rksp/bin/rksp"]
