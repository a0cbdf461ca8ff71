"""For authors: conformance checks, parity, templates, and experiments from other libraries."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ctta_bench import registry
from ctta_bench.cli.command import (
    DataRoot,
    Format,
    Plugin,
    check_format,
    command,
    error_printer,
    follow_up,
    load_plugins,
    print_json,
    printer,
)
from ctta_bench.cli.completion import completion, methods
from ctta_bench.errors import ConfigError


@command
def check(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method or a benchmark, or --all.", autocompletion=completion(methods)
        ),
    ] = None,
    all_methods: Annotated[bool, typer.Option("--all", help="Check all methods.")] = False,
    data_root: DataRoot = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Run the conformance checks on a method, with a tiny model, or on a benchmark, in seconds.

    Example: `ctta-bench check confident --plugin my_method.py`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    if (name is None) != all_methods:
        raise ConfigError("check: give the name of one method or benchmark, or --all.")
    from dataclasses import asdict

    outcomes: list[Any] = []
    if name is not None and registry.canonical(name) in registry.BENCHMARKS.names():
        from ctta_bench.authoring.benchmark_checks import check_benchmark

        outcomes += check_benchmark(name, root=data_root)
        kind = "benchmark"
    else:
        from ctta_bench.testing import check_method

        names = [registry.METHODS.find(name).name] if name else registry.METHODS.names()
        outcomes += [outcome for one in names for outcome in check_method(one)]
        kind = "method"
    rows = [asdict(outcome) for outcome in outcomes]
    if as_json:
        print_json(rows)
    else:
        from ctta_bench.cli.terminal.console import plain_table

        cells = [[r[kind], r["check"].replace("_", " "), r["state"], r["detail"]] for r in rows]
        printer().print(plain_table([kind, "check", "state", "detail"], cells))
    failed = sum(not outcome.passed for outcome in outcomes)
    if failed:
        error_printer().print(f"{failed} of {len(outcomes)} checks failed", highlight=False)
        raise typer.Exit(1)


@command
def parity(
    method: Annotated[
        str | None,
        typer.Argument(help="Only cases of this method.", autocompletion=completion(methods)),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(help="Folder of cases.", show_default="those of the repository"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the verdicts to this CSV file.")] = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Compare methods with reference outputs recorded from the authors' code.

    Example: `ctta-bench parity tent`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from dataclasses import asdict

    from ctta_bench.authoring.parity import cases_for, verdict

    wanted = registry.METHODS.find(method).name if method else None
    verdicts = [verdict(file) for file in cases_for(cases, wanted)]
    if out is not None:
        from ctta_bench.authoring.parity import write_verdicts

        write_verdicts(verdicts, out)
    if as_json:
        print_json([asdict(v) | {"verdict": v.words} for v in verdicts])
    else:
        from ctta_bench.cli.terminal.console import parity_table

        printer().print(parity_table(verdicts))
        counts = Counter(v.words for v in verdicts)
        typer.echo(", ".join(f"{count} {words}" for words, count in counts.items()) or "no cases")
    if any(v.agrees is False for v in verdicts):
        raise typer.Exit(1)


@command
def new_method(
    name: Annotated[str, typer.Argument(help="The name that users will type.")],
    out: Annotated[
        Path, typer.Option(help="Folder for the two files.", show_default="this folder")
    ] = Path(),
) -> None:
    """Write the file of a new method, which runs as it is, and its test.

    Example: `ctta-bench new method my_method`
    """
    from ctta_bench.authoring.skeleton import new_method as write

    _print_written(*write(name, out))


@command
def new_benchmark(
    name: Annotated[str, typer.Argument(help="The name that users will type.")],
    out: Annotated[
        Path, typer.Option(help="Folder for the two files.", show_default="this folder")
    ] = Path(),
) -> None:
    """Write the file of a new benchmark, which runs as it is, and its test.

    Example: `ctta-bench new benchmark my_cameras`
    """
    from ctta_bench.authoring.skeleton import new_benchmark as write

    _print_written(*write(name, out))


@command
def import_config(
    file: Annotated[Path, typer.Argument(help="A YAML file of mariodoebler/test-time-adaptation.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The experiment file.", show_default="FILE_BENCHMARK.yaml here"),
    ] = None,
) -> None:
    """Write an experiment file from a configuration of test-time-adaptation.

    Prints, and notes in the file, each key that has no counterpart.

    Example: `ctta-bench import-config cfgs/cifar10_c/cotta.yaml`
    """
    import yaml

    from ctta_bench.config.imported import THEIRS
    from ctta_bench.config.imported import import_config as read

    experiment, notes = read(file)
    target = out or Path(f"{experiment.name}.yaml")
    if target.exists():
        raise ConfigError(f"{target}: exists already; give another file with --out.")
    head = [f"From {file.name} of {THEIRS}.", *notes]
    values = experiment.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100)
    try:
        target.write_text("".join(f"# {line}\n" for line in head) + text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror}).") from None
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{target}\nnext: {follow_up('grid', target, '--dry-run')}")


def _print_written(entry: Path, test: Path) -> None:
    check_it = follow_up("check", entry.stem, "--plugin", entry)
    typer.echo(f"{entry}\n{test}\nnext: {check_it}")
