# One image for every component; which one runs is its first argument: operator, scheduler, webhook, agent, server, worker.
# Docker, podman and kaniko build it from this file, and so does scripts/image, which needs none of them: it takes its base
# from Debian packages. It knows the instructions below and no others; the last stage may not RUN anything.
ARG BASE=python:3.13-slim

FROM ${BASE} AS tools
COPY requirements/build.txt /requirements/
RUN python -m venv /tools \
 && /tools/bin/pip install --no-compile --require-hashes -r /requirements/build.txt

FROM tools AS wheel
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN /tools/bin/hatchling build -t wheel -d /wheel

# All modules are compiled, Python's own included, for nothing can be written where the image runs; in a folder of their own,
# for Python's are elsewhere in another base; and without times in them: the same input makes the same image.
FROM tools AS install
ENV PYTHONPYCACHEPREFIX=/opt/gpu-orchestrator/compiled PYTHONDONTWRITEBYTECODE=1
COPY requirements/image.txt /requirements/
RUN python -m venv --without-pip /opt/gpu-orchestrator \
 && /tools/bin/pip --python /opt/gpu-orchestrator/bin/python install --no-compile --require-hashes -r /requirements/image.txt \
 && python -m compileall -q --invalidation-mode unchecked-hash -x '/(site|dist)-packages/|/tests?/|/lib2to3/|/idlelib/' \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && python -m compileall -q --invalidation-mode unchecked-hash -x '/tests?/' /opt/gpu-orchestrator/lib
COPY --from=wheel /wheel /wheel
RUN /tools/bin/pip --python /opt/gpu-orchestrator/bin/python install --no-compile --no-index --no-deps /wheel/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/gpu-orchestrator/lib/python3.*/site-packages/gpu_orchestrator \
 && mkdir /data

FROM ${BASE}
LABEL org.opencontainers.image.title="gpu-orchestrator" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=install /opt/gpu-orchestrator /opt/gpu-orchestrator
COPY --from=install --chown=65532:65532 /data /data
ENV PATH=/opt/gpu-orchestrator/bin:$PATH PYTHONPYCACHEPREFIX=/opt/gpu-orchestrator/compiled PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["gpu-orchestrator"]
CMD ["operator"]
