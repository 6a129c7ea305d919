# A worker: packages by hash, no compiler, no embedded server, no root.
#
#   docker build -t ratchet-worker .
#
# Packages from an index of your own: docker build --secret id=pip,src=$HOME/.config/pip/pip.conf .
FROM python:3.11.15-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /venv
WORKDIR /app
COPY deploy/worker.lock deploy/build.lock deploy/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /venv/bin/pip install --require-hashes --no-deps -r deploy/worker.lock -r deploy/build.lock
COPY pyproject.toml *.md LICENSE worker.py ./
COPY docs/*.md docs/
COPY activities activities
COPY client client
COPY ratchet ratchet
COPY workflows workflows
COPY examples examples
COPY deploy/worker_health.py deploy/wheel.py deploy/
# editable: the sources stay in /app, beside the example agents, as in a checkout
RUN /venv/bin/pip install --no-deps --no-build-isolation --no-index --editable . \
    && /venv/bin/pip uninstall --yes pip setuptools \
    && /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash .

FROM python:3.11.15-slim-bookworm
RUN groupadd --gid 10001 ratchet \
    && useradd --uid 10001 --gid ratchet --home-dir /app --shell /usr/sbin/nologin ratchet \
    && install --directory --owner ratchet --group ratchet /files /var/lib/ratchet
COPY --from=build /venv /venv
COPY --from=build /app /app
WORKDIR /app
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RATCHET_DATA_DIR=/var/lib/ratchet \
    RATCHET_FILES_ROOT=/files \
    RATCHET_LOG_FORMAT=json
VOLUME ["/var/lib/ratchet", "/files"]
USER ratchet
HEALTHCHECK --interval=30s --timeout=15s --start-period=30s --retries=3 \
    CMD ["python", "deploy/worker_health.py"]
CMD ["python", "worker.py"]
