#!/bin/sh
# Checks that need a machine with a GPU; they take a few minutes:
#
#     scripts/gpu_check.sh [FOLDER]
#
# the tests marked gpu; the cost of methods on ViT-B/16 with batches of 64 in float32 and bfloat16,
# with random weights and images (nothing is downloaded); and a run that is interrupted and resumed,
# which must be bit-identical with an uninterrupted one. Writes tables to FOLDER (gpu-check).
set -eu
cd "$(dirname "$0")/.."
out=${1:-gpu-check}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
mkdir -p "$out"

"$python" - <<'PY' || { echo "error: torch finds no GPU" >&2; exit 2; }
import sys, torch
sys.exit(0 if torch.cuda.is_available() else 1)
PY
"$python" -c 'import torch; print(torch.cuda.get_device_name(0), "torch", torch.__version__)' \
  | tee "$out/device.txt"

echo "== tests marked gpu"
if "$python" -c 'import pytest, xdist' 2>/dev/null; then
  timeout 120 "$python" -m pytest -q -m gpu -n 0 tests | tee "$out/tests.txt"
else
  echo "skipped: pytest and pytest-xdist are not installed" | tee "$out/tests.txt"
fi

echo "== cost of ViT-B/16, batches of 64"
methods="source tent sar eata pseudo_label paid lora dora rotta"
for precision in float32 bfloat16; do
  "$python" -m ctta_bench cost $methods --benchmark imagenet_c --random --device cuda \
    --model timm:vit_base_patch16_224 --set benchmark.batch_size=64 --repeats 5 \
    --precision "$precision" --out "$out" | tee "$out/cost-$precision.txt"
done

echo "== a resumed run is bit-identical with an uninterrupted one"
"$python" - "$out" <<'PY'
import sys
from pathlib import Path

import numpy as np

from ctta_bench.config.cell import CellRequest, resolve
from ctta_bench.run.engine import run_cell
from ctta_bench.run.loggers import Logger
from ctta_bench.run.options import RunOptions
from ctta_bench.record.folder import RunFolder

folder = Path(sys.argv[1]) / "resume"
values = {"benchmark.domains": ["contrast"], "benchmark.examples": 500}


class StopsAfter(Logger):
    """Interrupts the run once, as Ctrl-C would."""

    def batch(self, record):
        if record["batch"] == 4:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)


for method in ("tent", "paid", "rotta"):
    cell = resolve(CellRequest(method=method, benchmark="fashion_c", set=values, workers=0))
    whole, cut = RunFolder(folder / f"{method}-whole"), RunFolder(folder / f"{method}-cut")
    run_cell(cell, whole, RunOptions("cuda", force=True))
    try:
        run_cell(cell, cut, RunOptions("cuda", True, [StopsAfter()]))
        raise SystemExit(f"{method}: was not interrupted")
    except KeyboardInterrupt:
        pass
    run_cell(cell, cut, RunOptions("cuda"))
    with np.load(whole.file("predictions.npz")) as a, np.load(cut.file("predictions.npz")) as b:
        same = all(np.array_equal(a[name], b[name]) for name in a.files)
    print(f"{method}: {'bit-identical' if same else 'DIFFERENT'}")
    if not same:
        raise SystemExit(1)
PY
echo "all done; tables in $out"
