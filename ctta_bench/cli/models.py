"""Source models: fetching, showing and training one; and adapted models out of runs."""

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
    print_json,
)

Name = Annotated[str, typer.Argument(help="A model (`ctta-bench list models`), or timm:NAME.TAG.")]
Weights = Annotated[
    Path | None, typer.Option(help="File or folder of weights: .safetensors, .pth, .npz.")
]


@command
def models_download(name: Name) -> None:
    """Fetch the weights of a timm model from the hub into the hub's cache.

    Example: `ctta-bench models download timm:vit_base_patch16_224.augreg_in21k_ft_in1k`
    """
    from ctta_bench.errors import ConfigError
    from ctta_bench.source_models import hub
    from ctta_bench.source_models.pretrained import TIMM, build

    if not name.startswith(TIMM):
        raise ConfigError(f"model {name!r}: only timm:NAME.TAG is on the hub; see docs/models.md.")
    network = build(name)
    found = hub.cached(network)
    file = found or hub.download(network, name)
    typer.echo(f"{'already there' if found else 'fetched'}: {file}")


@command
def models_show(
    name: Name,
    weights: Weights = None,
    preprocessing: Preprocessing = "true",
    data_root: DataRoot = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Tell of a model as a run would load it: parameters, classes, fingerprint, pre-processing.

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
    segments = model.task == "segmentation"
    facts = {
        "name": model.name,
        "sha256": model.sha256(),
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "task": model.task,
        "classes": model.num_classes if model.has_classifier or segments else None,
        "preprocessing": model.preprocessing.record(),
    }
    if as_json:
        print_json(facts)
        return
    typer.echo(
        f"{facts['name']}: weights {facts['sha256'][:8]}, {facts['parameters']:,} parameters, "
        f"{facts['classes']} classes, pre-processing {model.preprocessing}"
    )


@command
def train_source(
    benchmark: BenchmarkArgument,
    model: Model = None,
    train_data: Annotated[
        Path | None, typer.Option(help="Folder of the training images, if not below --data-root.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the model that training starts from.")
    ] = None,
    preprocessing: Preprocessing = "true",
    set: Set = None,
    seed: Annotated[int, typer.Option(help="Seed of first weights, order, augmentation.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="File; DATA_ROOT/models/MODEL.safetensors.")
    ] = None,
    data_root: DataRoot = None,
    device: Device = None,
    plugin: Plugin = None,
    force: Force = False,
    quiet: Quiet = False,
    format: Format = "text",
) -> None:
    """Train a source model where there is none; the same command goes on after an interrupt.

    Example: `ctta-bench train-source cifar10_c --model cifar10_vit_base --data-root ~/data`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.config.validation import parse_assignments
    from ctta_bench.errors import ConfigError
    from ctta_bench.registry import BENCHMARKS
    from ctta_bench.run.environment import default_device
    from ctta_bench.source_models.pretrained import stored_file
    from ctta_bench.training.card import TITLES, clean_key
    from ctta_bench.training.loop import check_name
    from ctta_bench.training.loop import train_source as train
    from ctta_bench.training.recipes import recipe_for
    from ctta_bench.training.task import task_for

    entry = BENCHMARKS.get(benchmark)
    name = model or entry.default_model
    if not name:
        raise ConfigError(f"benchmark {benchmark!r} has no model of its own: give --model.")
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
    from ctta_bench.cli.progress import TrainingProgress

    with TrainingProgress(Console(stderr=True, quiet=quiet or as_json), name) as progress:
        record = train(task, file, device=device or default_device(), force=force, report=progress)
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
    cell: Annotated[Path, typer.Argument(help="A run folder whose run kept its models.")],
    out: Annotated[Path, typer.Argument(help="The file to write, OUT.safetensors.")],
    domain: Annotated[
        str | None, typer.Option(help="At the end of this domain; default: of the stream.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file in the way.")] = False,
) -> None:
    """Write an adapted model as a plain network, adapters merged, that timm (or mmseg) loads.

    Example: `ctta-bench export runs/single/paid-fashion_c-... adapted.safetensors`
    """
    from ctta_bench.run.export import export as write

    source = write(cell, out, domain=domain, force=force)
    typer.echo(f"{out} (from {source})")
