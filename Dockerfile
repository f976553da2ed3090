# One image for every component; which one runs is its first argument: operator, server, worker, ...
# What runs on Kubernetes needs `kubernetes`; the cluster manager and its workers need more: --build-arg REQUIREMENTS=manager
FROM python:3.13-slim AS wheel
WORKDIR /src
RUN python -m venv /tools
COPY requirements/dev.txt requirements/
RUN /tools/bin/pip install --no-cache-dir --require-hashes -r requirements/dev.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN /tools/bin/hatchling build -t wheel -d /wheel

FROM python:3.13-slim AS install
ARG REQUIREMENTS=kubernetes
COPY requirements/${REQUIREMENTS}.txt requirements.txt
COPY --from=wheel /wheel /wheel
RUN python -m venv /opt/gpu-orchestrator \
 && /opt/gpu-orchestrator/bin/pip install --no-cache-dir --require-hashes -r requirements.txt \
 && /opt/gpu-orchestrator/bin/pip install --no-cache-dir --no-deps /wheel/*.whl \
 && /opt/gpu-orchestrator/bin/python -m compileall -q /opt/gpu-orchestrator \
 && mkdir /data

FROM python:3.13-slim
COPY --from=install /opt/gpu-orchestrator /opt/gpu-orchestrator
COPY --from=install --chown=65532:65532 /data /data
ENV PATH=/opt/gpu-orchestrator/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["gpu-orchestrator"]
CMD ["operator"]
