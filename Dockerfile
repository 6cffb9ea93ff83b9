# docker build -t rksp . && docker run --rm -v "$PWD:/run-files:ro" rksp score gpt2 --lr 6e-4
FROM python:3.12-slim
RUN pip install --no-cache-dir uv
WORKDIR /src
COPY . .
RUN uv pip install --system --no-cache --torch-backend=cpu -c constraints.txt . && rm -rf /src
RUN useradd --create-home rksp
USER rksp
WORKDIR /run-files
ENV PYTHONSAFEPATH=1
ENTRYPOINT ["rksp"]
