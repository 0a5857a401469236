# The sandbox image of the demo and the tests: a plain distribution with Python and git, and nothing of ours in it.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN if ! python3 -c 'import pytest' || ! command -v git; then \
      apt-get update \
      && apt-get install -y --no-install-recommends python3 python3-pytest git ca-certificates \
      && rm -rf /var/lib/apt/lists/*; \
    fi
CMD ["/bin/bash"]
