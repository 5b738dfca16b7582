#!/usr/bin/env bash
# Makes .venv with everything that the demo and the tests need, then prepares the embedded models.
# Does nothing when that is done already; mends a half-finished or moved .venv. Asks nothing.
# Each argument names one more dependency group: `scripts/setup.sh long`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="$PWD/.venv"
stamp="$venv/.inferscale-setup"

fail() { echo "setup: $*" >&2; exit 1; }

is_python() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3.11}" python3.12 python3.13 python3 python; do
        # The real path: a version manager's shim would stop working in another folder.
        if is_python "$candidate"; then "$candidate" -c 'import sys; print(sys.executable)'; return; fi
    done
    fail "Python 3.11, 3.12 or 3.13 is needed and none is on PATH (name one with PYTHON=/path/to/python)"
}

venv_is_whole() { is_python "$venv/bin/python" && grep -qsF "$venv" "$venv/bin/activate"; }

wanted() { cat pyproject.toml requirements/*.txt scripts/setup.sh | cksum; }

make_venv() {
    local python
    python="$(find_python)"
    rm -rf "$venv"
    if uv --version >/dev/null 2>&1; then
        uv venv --quiet --python "$python" "$venv"
    else
        "$python" -m venv "$venv" || fail "$python cannot make virtual environments: install its venv package"
    fi
}

find_uv() {
    if uv --version >/dev/null 2>&1; then echo uv; return; fi
    if ! "$venv/bin/uv" --version >/dev/null 2>&1; then
        "$venv/bin/python" -m ensurepip --upgrade >/dev/null 2>&1 || true
        "$venv/bin/python" -m pip install --quiet --no-input uv >&2 || fail "uv could not be installed with pip"
    fi
    echo "$venv/bin/uv"
}

why_not() {  # the sentence in uv's words that names the package or the fault
    local why
    sleep 0.2  # what uv said last may still be on its way into the file
    why="$(sed -n 's/.*╰─▶ //p; s/^ *× //p; s/^error: //p' "$1" | tail -n 1)"
    rm -f "$1"
    echo "${why:-reason above}"
}

# Takes what is to be installed.
install_packages() {
    local uv log torch_source=()
    uv="$(find_uv)"
    # uv ignores pip's settings. A folder of wheels (pip parts several by blanks, uv by commas) rules out an index for
    # torch: with both, uv takes torch from the index.
    if [[ -z "${UV_FIND_LINKS:-}" && -n "${PIP_FIND_LINKS:-}" ]]; then
        export UV_FIND_LINKS="${PIP_FIND_LINKS// /,}"
    fi
    if [[ -z "${UV_FIND_LINKS:-}" ]]; then torch_source=(--torch-backend cpu); fi
    if [[ -z "${SSL_CERT_FILE:-}" && -n "${PIP_CERT:-}" ]]; then export SSL_CERT_FILE="$PIP_CERT"; fi
    log="$(mktemp)"
    "$uv" pip install --python "$venv/bin/python" ${torch_source[@]+"${torch_source[@]}"} \
        "$@" --override requirements/overrides.txt --constraint requirements/constraints-cpu.txt </dev/null \
        2> >(tee "$log" >&2) \
        || fail "the packages could not be installed: $(why_not "$log"); run it again to resume"
    rm -f "$log"
}

command -v g++ >/dev/null || fail "g++ is missing: vLLM compiles kernels at run time (Debian, Ubuntu: apt install g++)"
if ! venv_is_whole; then make_venv; fi
if [[ ! -f "$stamp" || "$(cat "$stamp")" != "$(wanted)" ]]; then
    rm -f "$stamp"
    rm -f "$stamp"-*
    install_packages --editable '.[server-cpu,langchain,llamaindex,mem0,mcp]' --group dev --group docs
    wanted >"$stamp"
fi
for group in "$@"; do
    if [[ -f "$stamp-$group" ]]; then continue; fi
    install_packages --group "$group"
    touch "$stamp-$group"
done
"$venv/bin/python" -m inferscale_server.models
