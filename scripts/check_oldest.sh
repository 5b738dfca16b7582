#!/usr/bin/env bash
# Runs the tests of the LangChain and LlamaIndex packages with the oldest versions that pyproject.toml allows, in a
# virtual environment of its own that is thrown away. Needs packages, no engine. Takes about two minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

floor() { grep -oP "\"$1>=\K[0-9.]+" pyproject.toml | head -1; }
pinned() { grep -oP "\"$1==\K[0-9.]+" pyproject.toml | head -1; }

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

python="${PYTHON:-python3.11}"
"$python" -m venv "$folder/venv"
install() { "$folder/venv/bin/python" -m pip install --quiet --no-input "$@"; }

# What the memory service behind a port needs, without torch and vLLM: the tests talk to the real routes.
served=(fastapi httpx hypothesis numpy prometheus-client pydantic pytest pytest-asyncio uvicorn)

check() {
    local tests="$1"
    shift
    echo "oldest: $*"
    PYTHONPATH="$PWD:$PWD/server:$PWD/integrations/langchain:$PWD/integrations/llamaindex" \
        "$folder/venv/bin/python" -m pytest -p no:cacheprovider -m "not engine and not long" "$tests"
}

install "langchain-core==$(floor langchain-core)" langchain langgraph \
    "langchain-tests==$(pinned langchain-tests)" "${served[@]}"
check tests/langchain "langchain-core $(floor langchain-core)"

# Added to the same environment, which saves a second set-up.
install "llama-index-core==$(floor llama-index-core)" "langchain-core==$(floor langchain-core)" "${served[@]}"
check tests/llamaindex "llama-index-core $(floor llama-index-core)"
