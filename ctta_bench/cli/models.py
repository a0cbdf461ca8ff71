"""Source models: download, show and train one; export an adapted model of a run."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ctta_bench.cli.command import (
    BenchmarkArgument,
    DataRoot,
    Device,
    Force,
    Format,
    Model,
    Plugin,
    Preprocessing,
    Quiet,
    Set,
    check_format,
    command,
    load_plugins,
    option,
    print_json,
)
from ctta_bench.cli.completion import completion, models
from ctta_bench.cli.listing import print_fields
from ctta_bench.config.options import DATA, MODEL, OUTPUT, WHAT

Name = Annotated[
    str,
    typer.Argument(
        help="A model (`ctta-bench list models`), or timm:NAME.TAG.",
        autocompletion=completion(models),
    ),
]
Weights = Annotated[
    Path | None, typer.Option(help="FILE[#KEY] or folder of weights: .safetensors, .pth, .npz.")
]


@command
def models_list(format: Format = "text") -> None:
    """List the public checkpoints of the paper: source models, and adapters after a warm-up.

    For each: where it is published, size, fingerprint, and the numbers to expect of it, as far as
    they are known. `ctta-bench list models` lists all models.

    Example: `ctta-bench models list`
    """
    as_json = check_format(format)
    from ctta_bench.api.discover import published_checkpoints

    rows = published_checkpoints()
    if as_json:
        print_json(rows)
    elif not sys.stdout.isatty():
        print_fields(list(rows[0]), (list(row.values()) for row in rows))
    else:
        for row in rows:
            typer.echo(f"{row['name']} ({row['kind']})")
            for key, value in list(row.items())[2:]:
                typer.echo(f"  {key:<10}{value}")


@command
def models_download(name: Name) -> None:
    """Download the weights of a timm model from the hub into the hub's cache.

    Example: `ctta-bench models download timm:vit_base_patch16_224.augreg_in21k_ft_in1k`
    """
    from ctta_bench.errors import ConfigError
    from ctta_bench.source_models import hub
    from ctta_bench.source_models.pretrained import TIMM, build

    if not name.startswith(TIMM):
        raise ConfigError(
            f"model {name!r}: only models timm:NAME.TAG are on the hub; see docs/models.md."
        )
    network = build(name)
    found = hub.cached(network)
    file = found or hub.download(network, name)
    typer.echo(f"{'already there' if found else 'downloaded'}: {file}")


@command
def models_show(
    name: Name,
    weights: Weights = None,
    preprocessing: Preprocessing = "true",
    data_root: DataRoot = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Show a model as a run loads it: parameters, classes, fingerprint, normalisation.

    Example: `ctta-bench models show fashion_vit`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.source_models.pretrained import load_source_model

    model = load_source_model(
        name,
        weights=weights,
        preprocessing=preprocessing,  # type: ignore[arg-type] # refused if it is no regime
        root=data_root,
    )
    facts = {
        "name": model.name,
        "sha256": model.sha256(),
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "task": model.task,
        "classes": model.known_classes,
        "features": model.has_features or model.task == "segmentation",
        "preprocessing": model.preprocessing.record(),
        "weights_note": model.weights_note or None,
    }
    if as_json:
        print_json(facts)
        return
    typer.echo(
        f"{facts['name']}: weights {facts['sha256'][:8]}, {facts['parameters']:,} parameters, "
        f"{facts['classes']} classes, normalisation {model.preprocessing}"
    )
    if model.weights_note:
        typer.echo(model.weights_note)
    if not facts["features"]:
        typer.echo("it offers no features: methods that use them (T3A, FOA, ...) do not support it")


@command
def models_check(
    name: Name,
    weights: Weights = None,
    data_root: DataRoot = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Check whether weights are those of a published source model: right, wrong or unknown.

    Compared are the fingerprint if it is published, names and shapes, and the accuracy on source
    images and clean test images that are there. The exit code is 1 for wrong weights.

    Example: `ctta-bench models check cifar10_vit_base --weights pretrain_cifar10.pth`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.api.discover import published_checkpoints
    from ctta_bench.errors import ConfigError
    from ctta_bench.run.weight_check import check_weights

    known = {row["name"]: row for row in published_checkpoints() if row["kind"] == "source model"}
    if name not in known:
        raise ConfigError(f"models check {name!r}: of the paper are {', '.join(known)}.")
    found = check_weights(name, known[name], weights=weights, root=data_root)
    if as_json:
        print_json({"name": name, **vars(found)})
    else:
        typer.echo("\n".join([f"{name}: {found.verdict}", *(f"- {t}" for t in found.findings)]))
    if found.verdict == "wrong":
        raise typer.Exit(1)


@command
def train_source(
    benchmark: BenchmarkArgument,
    model: Model = None,
    train_data: Annotated[
        Path | None,
        option(panel=DATA, unset="below --data-root", help="Folder of the training images."),
    ] = None,
    weights: Annotated[
        Path | None,
        option(panel=MODEL, unset="random", help="File of the weights that training starts from."),
    ] = None,
    preprocessing: Preprocessing = "true",
    set: Set = None,
    seed: Annotated[
        int, option(panel=WHAT, help="Seed of initial weights, image order and augmentation.")
    ] = 0,
    out: Annotated[
        Path | None,
        option(
            panel=OUTPUT,
            unset="DATA_ROOT/models/MODEL.safetensors",
            help="File of the trained weights.",
        ),
    ] = None,
    data_root: DataRoot = None,
    device: Device = None,
    plugin: Plugin = None,
    force: Force = False,
    quiet: Quiet = False,
    format: Format = "text",
) -> None:
    """Train a source model. The same command resumes an interrupted training.

    Example: `ctta-bench train-source cifar10_c --model cifar10_vit_base --data-root ~/data`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.config.validation import parse_assignments
    from ctta_bench.errors import ConfigError
    from ctta_bench.registry import BENCHMARKS
    from ctta_bench.run.environment import chosen_device
    from ctta_bench.source_models.pretrained import stored_file
    from ctta_bench.training.card import TITLES, clean_key
    from ctta_bench.training.loop import check_name
    from ctta_bench.training.loop import train_source as train
    from ctta_bench.training.recipes import recipe_for
    from ctta_bench.training.task import task_for

    entry = BENCHMARKS.get(benchmark)
    name = model or entry.default_model
    if not name:
        raise ConfigError(f"benchmark {benchmark!r} has no default model: give --model.")
    if preprocessing not in ("true", "lineage"):
        raise ConfigError(f"--preprocessing {preprocessing!r}: choose 'true' or 'lineage'.")
    recipe = recipe_for(name, parse_assignments(set or ()))
    file = out or stored_file(name, data_root)
    check_name(file)
    task = task_for(
        entry(None, data_root),
        name,
        recipe,
        train_data,
        seed=seed,
        regime=preprocessing,
        weights=weights,
    )
    from ctta_bench.cli.terminal.progress import TrainingProgress

    with TrainingProgress(Console(stderr=True, quiet=quiet or as_json), name) as progress:
        record = train(task, file, device=chosen_device(device), force=force, report=progress)
    if as_json:
        print_json(record | {"file": str(file)})
        return
    typer.echo(
        f"{name}: clean {TITLES[record['measure']]} {record[clean_key(record)]:.2f} %, "
        f"weights {record['sha256'][:8]}"
    )
    typer.echo(f"{file} (card: {file.with_suffix('.md').name})")


@command
def export(
    cell: Annotated[Path, typer.Argument(help="Run folder of a cell that stored its models.")],
    out: Annotated[Path, typer.Argument(help="File to write, OUT.safetensors.")],
    domain: Annotated[
        str | None,
        typer.Option(
            help="Export the model as it was at the end of this domain.",
            show_default="the end of the stream",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it exists.")
    ] = False,
    plugin: Plugin = None,
) -> None:
    """Write an adapted model as a plain network, adapters merged, that timm (or mmseg) loads.

    Example: `ctta-bench export runs/single/paid-fashion_c-... adapted.safetensors`
    """
    load_plugins(plugin)
    from ctta_bench.run.export import export as write

    source = write(cell, out, domain=domain, force=force)
    typer.echo(f"{out} (from {source})")
