"""What needs a GPU, in at most eight minutes: `scripts/gpu_check.sh`.

The tests marked gpu; the cost of methods on ViT-B/16 at batches of 64 in float32, TF32 and
bfloat16, whose records are files for `grid --dry-run --throughput`; the same forward pass and TENT
step eager, compiled and as a CUDA graph; how fast images are read next to how fast Source
predicts; and runs that are interrupted and must resume bit-identically. Weights and images are
random or made here. With --cpu it is a rehearsal with a small network. Each step has a time by
which it ends; one that is stopped then, or finds no time left, says so.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

MINUTES = 8.0
# The share of the time by which a step has ended; what it leaves is for the steps after it.
ENDS = {
    "device": 0.04,
    "tests": 0.2,
    "cost, float32": 0.36,
    "cost, tf32": 0.47,
    "cost, bfloat16": 0.58,
    "plan": 0.62,
    "forms": 0.84,
    "loader": 0.92,
    "resume": 0.99,
}
OVER = "stopped, its time was over"
METHODS = ("source", "tent", "sar", "eata", "pseudo_label", "paid", "lora", "rotta")
VIT = "timm:vit_base_patch16_224"
SMALL = "timm:test_vit"
PRECISIONS = ("float32", "tf32", "bfloat16")
REPEATS = 5
RESUMED = ("tent", "paid", "rotta")


@dataclass
class Check:
    """One call: its folder, device and time.

    until: seconds after the start by which the step has ended. outcomes: a sentence for each step.
    """

    out: Path
    is_cpu: bool
    began: float
    until: float
    outcomes: dict[str, str]

    @property
    def device(self) -> str:
        """As in `--device`."""
        return "cpu" if self.is_cpu else "cuda"

    @property
    def left(self) -> float:
        """Seconds of the step."""
        return self.until - (time.monotonic() - self.began)

    @property
    def model(self) -> str:
        """The network that is measured."""
        return SMALL if self.is_cpu else VIT

    @property
    def batch_size(self) -> int:
        """Of the measured steps."""
        return 4 if self.is_cpu else 64

    def command(self, *words: str, flags: str = "pass") -> "subprocess.CompletedProcess[str]":
        """Run `ctta-bench WORDS`; `flags` is Python run before."""
        code = f"import sys, torch; {flags}; from ctta_bench.cli import main; main()"
        return self.process([sys.executable, "-c", code, *words])

    def process(self, words: list[str]) -> "subprocess.CompletedProcess[str]":
        """A process that ended. RuntimeError if it fails, TimeoutError when the time is over."""
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=max(self.left, 1), check=False
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(OVER) from None
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["failed"])[-1])
        return done


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("folder", nargs="?", type=Path, default=Path("gpu-check"))
    parser.add_argument("--cpu", action="store_true", help="a rehearsal, without a GPU")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"{MINUTES:g}")


def run(options: argparse.Namespace) -> int:
    """Run all steps; 0 if all ended, 1 if one failed or had too little time, 2 without a GPU."""
    if not options.cpu and not torch.cuda.is_available():
        print("error: torch finds no GPU; rehearse with --cpu", file=sys.stderr)
        return 2
    seconds = 60 * options.minutes
    check = Check(options.folder, options.cpu, time.monotonic(), seconds, {})
    check.out.mkdir(parents=True, exist_ok=True)
    steps: dict[str, Callable[[Check], str]] = {"device": _device, "tests": _tests}
    for precision in PRECISIONS:
        steps[f"cost, {precision}"] = lambda check, p=precision: _cost(check, p)
    steps |= {"plan": _plan, "forms": _forms, "loader": _loader, "resume": _resume}
    failed = False
    signal.signal(signal.SIGALRM, _stop)
    for name, step in steps.items():
        check.until = seconds * ENDS[name]
        try:
            if check.left > 1:
                signal.setitimer(signal.ITIMER_REAL, check.left)
                outcome = step(check)
            else:
                outcome, failed = "skipped: no time left", True
        except TimeoutError as error:
            outcome, failed = str(error), True
        except Exception as error:  # the steps after it are of use without it
            outcome, failed = f"FAILED: {type(error).__name__}: {error}", True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        check.outcomes[name] = outcome
        print(f"{name}: {outcome}", flush=True)
        (check.out / "check.json").write_text(json.dumps(check.outcomes, indent=1) + "\n")
    print(f"{time.monotonic() - check.began:.0f} s; records in {check.out}")
    return int(failed)


def _stop(number: int, frame: object) -> None:
    raise TimeoutError(OVER)


def _device(check: Check) -> str:
    name = "CPU (a rehearsal)" if check.is_cpu else torch.cuda.get_device_name(0)
    return f"{name}, torch {torch.__version__}"


def _tests(check: Check) -> str:
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    if check.is_cpu:
        return "skipped: they need a GPU"
    return check.process(words).stdout.strip().splitlines()[-1]


def _cost(check: Check, precision: str) -> str:
    """The record of `ctta-bench cost`; TF32 is float32 with its switches on."""
    if check.is_cpu and precision == "tf32":
        return "skipped: it needs a GPU"
    flags = "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True"
    methods = METHODS[:3] if check.is_cpu else METHODS
    words = [
        *("cost", *methods, "--benchmark", "imagenet_c", "--random", "--model", check.model),
        *("--device", check.device, "--set", f"benchmark.batch_size={check.batch_size}"),
        *("--precision", "float32" if precision == "tf32" else precision),
        *("--repeats", str(REPEATS), "--out", str(check.out / precision), "--format", "json"),
    ]
    made = json.loads(check.command(*words, flags=flags if precision == "tf32" else "pass").stdout)
    speeds = {one["method"]: round(one["images_per_second"]) for one in made["methods"]}
    return f"images per second {speeds}; {made['file']}"


def _plan(check: Check) -> str:
    """The hours of a table of the paper, from the record in float32."""
    records = sorted((check.out / "float32").glob("cost-*.json"))
    if not records:
        return "skipped: the cost in float32 was not measured"
    experiment = "paper/main_imagenet_c"
    if check.is_cpu:  # of the network that was measured
        file = check.out / "plan.yaml"
        file.write_text(f"_base_: {experiment}\nmodels: ['{check.model}']\n", "utf-8")
        experiment = str(file)
    words = ["grid", experiment, "--dry-run", "--throughput", str(records[-1])]
    lines = check.command(*words).stderr.splitlines()
    return next(line for line in lines if "passes of cells" in line)


def _forms(check: Check) -> str:
    """Milliseconds of a forward pass and of a TENT step: eager, compiled, as a CUDA graph."""
    import timm

    network = timm.create_model(check.model.removeprefix("timm:")).to(check.device).eval()
    network.requires_grad_(False)
    norms = [m for m in network.modules() if isinstance(m, torch.nn.LayerNorm)]
    trained = [p.requires_grad_() for norm in norms for p in norm.parameters()]
    size = network.pretrained_cfg["input_size"]
    images = torch.rand(check.batch_size, *size, device=check.device)

    def forward(model: Callable[..., Any]) -> None:
        with torch.no_grad():
            model(images)

    def step(model: Callable[..., Any]) -> None:
        logits = model(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        torch.autograd.grad(loss, trained)

    found: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        for form in ("eager", "compiled", "graph"):
            try:
                with torch.autocast(check.device, torch.bfloat16, enabled=dtype == "bfloat16"):
                    times = _timed(check, network, form, forward, step)
            except TimeoutError:
                times = {"stopped": "its time was over"}
            except Exception as error:  # compilers and graphs fail in many ways
                times = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
            found[f"{form}, {dtype}"] = times
    (check.out / "forms.json").write_text(json.dumps(found, indent=1) + "\n")
    return f"milliseconds per batch {found}"


def _timed(
    check: Check,
    network: Any,
    form: str,
    forward: Callable[[Any], None],
    step: Callable[[Any], None],
) -> dict[str, float | str]:
    if check.left < 10:
        return {"skipped": "no time left"}
    if form == "graph" and check.is_cpu:
        return {"skipped": "it needs a GPU"}
    modes = {"compiled": "default", "graph": "reduce-overhead"}  # the second records CUDA graphs
    torch.compiler.reset()
    model = network if form == "eager" else torch.compile(network, mode=modes[form])
    return {
        "forward": _milliseconds(check, lambda: forward(model)),
        "step": _milliseconds(check, lambda: step(model)),
    }


def _milliseconds(check: Check, work: Callable[[], None]) -> float:
    """The median of ten runs, after three that compile and warm up."""
    from ctta_bench.measuring.timing import clock

    now = clock(torch.device(check.device))
    spent = []
    for _ in range(13):
        began = now()
        work()
        spent.append(1000 * (now() - began))
    return round(sorted(spent[3:])[5], 2)


def _loader(check: Check) -> str:
    """Images per second that are read from JPEGs, next to those that Source predicts."""
    from ctta_bench.datasets.rehearsal.benchmarks import rehearse

    root = check.out / "data"
    rehearse("imagenet_c", root, images=2 if check.is_cpu else 20, workers=os.cpu_count() or 1)
    words = ["data", "bench", "imagenet_c", "--root", str(root), "--seconds", "4"]
    numbers = "0,1" if check.is_cpu else f"0,4,{min(16, os.cpu_count() or 1)}"
    more = ["--device", check.device, "--workers", numbers, "--format", "json"]
    read = json.loads(check.command(*words, *more).stdout)
    (check.out / "loader.json").write_text(json.dumps(read, indent=1) + "\n")
    records = [json.loads(f.read_text()) for f in check.out.glob("*/cost-*.json")]
    source = {
        record["precision"]: round(one["images_per_second"])
        for record in records
        for one in record["methods"]
        if one["method"] == "source"
    }
    return f"read {read}; Source predicts {source} images per second"


def _resume(check: Check) -> str:
    """Runs that were interrupted in the middle, next to uninterrupted ones."""
    from ctta_bench.config.cell import CellRequest, resolve
    from ctta_bench.record.folder import RunFolder
    from ctta_bench.record.schema import PREDICTIONS_FILE
    from ctta_bench.run.engine import run_cell
    from ctta_bench.run.loggers import Logger
    from ctta_bench.run.options import RunOptions

    class StopsAfter(Logger):
        """Interrupts the run once, as Ctrl-C does."""

        def batch(self, record: Any) -> None:
            if record["batch"] == 4:
                os.kill(os.getpid(), signal.SIGINT)

    images = 150 if check.is_cpu else 500
    values = {"benchmark.domains": ["contrast"], "benchmark.examples": images}
    values |= {"benchmark.batch_size": images // 10}
    for method in RESUMED:
        cell = resolve(CellRequest(method=method, benchmark="fashion_c", set=values, workers=0))
        whole, cut = (RunFolder(check.out / "resume" / f"{method}-{w}") for w in ("whole", "cut"))
        run_cell(cell, whole, RunOptions(check.device, force=True))
        try:
            run_cell(cell, cut, RunOptions(check.device, True, [StopsAfter()]))
            raise RuntimeError(f"{method}: was not interrupted")
        except KeyboardInterrupt:
            pass
        run_cell(cell, cut, RunOptions(check.device))
        files = [folder.file(PREDICTIONS_FILE) for folder in (whole, cut)]
        with np.load(files[0]) as a, np.load(files[1]) as b:
            if not all(np.array_equal(a[name], b[name]) for name in a.files):
                raise RuntimeError(f"{method}: a resumed run differs from an uninterrupted one")
    return f"{', '.join(RESUMED)}: bit-identical"
