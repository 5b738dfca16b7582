#!/usr/bin/env bash
# Runs the tests of the LangChain and LlamaIndex packages with the oldest versions that pyproject.toml allows, in a
# virtual environment of its own that is thrown away. Needs packages and scripts/setup.sh's environment, no engine. Takes
# one to two minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

floor() { grep -oP "\"$1>=\K[0-9.]+" pyproject.toml | head -1; }
pinned() { grep -oP "\"$1==\K[0-9.]+" pyproject.toml | head -1; }

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

# As in scripts/setup.sh, which leaves uv in the environment where there was none.
uv=uv
if ! uv --version >/dev/null 2>&1; then uv=.venv/bin/uv; fi
if [[ -z "${UV_FIND_LINKS:-}" && -n "${PIP_FIND_LINKS:-}" ]]; then export UV_FIND_LINKS="${PIP_FIND_LINKS// /,}"; fi
if [[ -z "${SSL_CERT_FILE:-}" && -n "${PIP_CERT:-}" ]]; then export SSL_CERT_FILE="$PIP_CERT"; fi

oldest=("langchain-core==$(floor langchain-core)" "llama-index-core==$(floor llama-index-core)")
# What the memory service behind a port needs, without torch and vLLM: the tests talk to the real routes.
served=(fastapi httpx hypothesis numpy prometheus-client pydantic pytest pytest-asyncio uvicorn)

echo "oldest: ${oldest[*]}"
"$uv" venv --quiet --python "${PYTHON:-.venv/bin/python}" "$folder/venv"
"$uv" pip install --quiet --python "$folder/venv/bin/python" \
    "${oldest[@]}" langchain langgraph "langchain-tests==$(pinned langchain-tests)" "${served[@]}" </dev/null
PYTHONPATH="$PWD:$PWD/server:$PWD/integrations/langchain:$PWD/integrations/llamaindex" \
    "$folder/venv/bin/python" -m pytest -p no:cacheprovider -m "not engine and not long" \
    tests/langchain tests/llamaindex
