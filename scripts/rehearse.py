"""Rehearse the paper of PAID: every experiment `paper/*`, from made-up data to its tables.

    python scripts/rehearse.py [FOLDER] [--smallest | --full-size | --only paper/NAME ...]

Data have the published layouts, streets the published size; networks have random weights with a
fitted last layer. Classification runs on a small ViT, so that all of it takes minutes on a CPU:
`--published` takes the published networks (ViT-B/16, hours). SegFormer-B5 is the published one; the
table runs on small copies of its images, and Source, TENT and PAID also once on the published
960 x 540 of images of 1920 x 1080 (`--full-size` alone). Numbers mean nothing; each command,
reader, method, table and figure is the real one. A second call resumes.
"""

import argparse
import contextlib
import io
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import yaml

from ctta_bench.cli import app
from ctta_bench.config.experiment_file import Experiment, experiment_files, load_experiment
from ctta_bench.config.yaml import read_yaml
from ctta_bench.datasets.rehearsal.benchmarks import rehearse
from ctta_bench.datasets.rehearsal.model import Network, network_of, write_rehearsal_model

TINY = "test_vit.r160_in1k"  # a timm network of 0.4 M parameters
STREETS = "cityscapes_acdc"
FOR_TINY: dict[str, dict[str, object]] = {"dept": {"stages": 3}}
SMALL_SCALE = (68, 120)
SMALLEST = ("paper/main_imagenet_c",)
ACDC = "paper/main_acdc"
# One page of each task, and those of experiments that are not a table of the paper.
PAGES = (*SMALLEST, ACDC, "paper/settings", "paper/geometry", "paper/attention")
# What only these experiments end with, in addition to their report.
ENDS = {
    "paper/geometry": ["geometry", "runs/geometry"],
    "paper/attention": [
        *("attention", "runs/attention", "--domain", "fog", "--image", "0"),
        *("--root", "data/imagenet_c"),
    ],
}
FULL_SIZE = "methods: [source, {name: tent, preset: paper}, {name: paid, preset: paper}]\n"


def main() -> int:
    """Make the data, run the experiments, and write their tables; returns the exit code."""
    head, *text = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description=head,
        epilog="\n".join(text[4:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("rehearsal"))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--smallest", action="store_true", help="paper/main_imagenet_c alone")
    which.add_argument("--full-size", action="store_true", help="SegFormer-B5 at 960 x 540 alone")
    which.add_argument("--only", action="append", metavar="paper/NAME", help="repeatable")
    parser.add_argument("--published", action="store_true", help="the published networks; hours")
    parser.add_argument("--images", type=int, default=1, help="per domain; 1")
    chosen = parser.parse_args()
    papers = [name for name in experiment_files() if name.startswith("paper/")]
    names = SMALLEST if chosen.smallest else tuple(chosen.only or papers)
    if unknown := sorted(set(names) - set(papers)):
        parser.error(f"{', '.join(unknown)}: choose of {', '.join(papers)}")
    begin = time.monotonic()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.full_size:
        full_size(chosen.folder)
        print(
            f"rehearsed SegFormer-B5 at 960 x 540 in {(time.monotonic() - begin) / 60:.1f} minutes"
        )
        return 0
    for name in names:
        run(name, chosen.folder, chosen.images, published=chosen.published)
    ctta_bench(chosen.folder, "report", "runs", "--as", "paper", "--against", "paper")
    made = sorted(file.stem for file in (chosen.folder / "runs" / "as-paper").glob("*.csv"))
    minutes = (time.monotonic() - begin) / 60
    print(f"rehearsed {len(names)} experiments in {minutes:.1f} minutes: {', '.join(made)}")
    print(chosen.folder / "runs" / "as-paper" / "tables.md")
    return 0


def run(name: str, folder: Path, images: int, *, published: bool) -> None:
    """One experiment, on each of its benchmarks, and its page."""
    begin = time.monotonic()
    experiment = load_experiment(name)
    few = ["--set", f"benchmark.examples={images}", "--workers", "0", "--quiet"]
    for benchmark in experiment.benchmarks:
        model = None if published or benchmark == STREETS else f"timm:{TINY}"
        words = made_data(experiment, benchmark, folder, tiny=model is not None)
        keys = f"models: ['{model}']\n" + fitting_methods(name) if model else ""
        file = derived(name, benchmark, keys, folder)
        size = f"benchmark.scale={list(SMALL_SCALE)}"
        small = ["--set", size] if benchmark == STREETS and not published else []
        ctta_bench(folder, "grid", file, *words, *small, *few)
    if name in PAGES:
        runs = f"runs/{experiment.name}"
        ctta_bench(folder, "report", runs, "--against", "paper", shown=False)
    if name in ENDS:
        ctta_bench(folder, *ENDS[name], shown=False)
    print(f"{name}: {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    if name == ACDC and not published:
        full_size(folder)


def fitting_methods(name: str) -> str:
    """The methods of an experiment as YAML, with what they need on TINY's six blocks; or ""."""
    methods = read_yaml(experiment_files()[name]).get("methods", [])
    entries = [entry if isinstance(entry, dict) else {"name": entry} for entry in methods]
    for entry in entries:
        if entry["name"] in FOR_TINY:
            entry["set"] = entry.get("set", {}) | FOR_TINY[entry["name"]]
    is_changed = any(entry["name"] in FOR_TINY for entry in entries)
    return yaml.safe_dump({"methods": entries}) if is_changed else ""


def full_size(folder: Path) -> None:
    """SegFormer-B5 on an image of 1920 x 1080, which it sees as published: 960 x 540."""
    words = made_data(load_experiment(ACDC), STREETS, folder, tiny=False)
    file = derived(ACDC, "full-size", f"name: full_size\n{FULL_SIZE}", folder)
    once = ["--set", "benchmark.domains=[fog]", "--set", "benchmark.rounds=1"]
    ctta_bench(folder, "grid", file, *words, *once, "--workers", "0", "--out", "full-size")


def derived(name: str, part: str, keys: str, folder: Path) -> str:
    """A file with a part of an experiment; returns its path in the folder."""
    file = folder / "experiments" / f"{name.rpartition('/')[2]}-{part}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    benchmark = STREETS if part == "full-size" else part
    file.write_text(f"_base_: {name}\nbenchmarks: [{benchmark}]\n{keys}", "utf-8")
    return str(file.relative_to(folder))


def made_data(experiment: Experiment, benchmark: str, folder: Path, *, tiny: bool) -> list[str]:
    """Make the data and weights of a benchmark; returns the arguments that name them."""
    root = folder / "data" / benchmark
    network = network_of(benchmark)
    if benchmark == STREETS:
        rehearse(benchmark, root, images=1, full_size=True)
    else:
        rehearse(benchmark, root)
    write_rehearsal_model(
        benchmark,
        root,
        Network("test_vit", network.classes, TINY) if tiny else network,
        scale=SMALL_SCALE if benchmark == STREETS else None,
    )
    own = ["--root", str(root.relative_to(folder))]
    if any(entry.semantic_shift for entry in experiment.methods):
        shift = folder / "data" / "cifar100_c" / "cifar-100-python"
        rehearse("cifar100_c", shift.parent)
        shutil.copytree(shift, root / shift.name, dirs_exist_ok=True)
    return own


def ctta_bench(folder: Path, *words: str, shown: bool = True) -> None:
    """A command as a user types it, in the folder; ends this program where it fails."""
    print("$", shlex.join(["ctta-bench", *words]), flush=True)
    output = contextlib.nullcontext() if shown else contextlib.redirect_stdout(io.StringIO())
    here = Path.cwd()
    os.chdir(folder)
    try:
        with output:
            code = app([*words], standalone_mode=False)
    finally:
        os.chdir(here)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
