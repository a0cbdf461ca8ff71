#!/bin/sh
# Everything that needs a machine with a GPU, in at most eight minutes:
#
#     scripts/gpu_check.sh [FOLDER] [--cpu]
#
# Nothing is downloaded. `--cpu` rehearses it with a small network. More: scripts/costs/gpu.py
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
exec "$python" scripts/bench.py gpu "$@"
