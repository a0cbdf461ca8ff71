"""Read the data of a benchmark: is it complete, and how fast is it read."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ctta_bench import registry
from ctta_bench.cli.command import (
    BenchmarkArgument,
    CacheDecoded,
    DataRoot,
    Device,
    Format,
    Plugin,
    Set,
    Workers,
    check_format,
    command,
    load_plugins,
    option,
    print_json,
    printer,
)
from ctta_bench.config.options import DATA, HOW
from ctta_bench.errors import ConfigError, DataError


def _benchmark(name: str, assignments: list[str] | None, root: Path | None) -> Any:
    from ctta_bench.config.validation import parse_assignments, validate

    entry = registry.BENCHMARKS.get(name)
    values = {
        key.removeprefix("benchmark."): value
        for key, value in parse_assignments(assignments or ()).items()
    }
    return entry(validate(entry.Settings, values, f"benchmark {entry.name}"), root)


@command
def data_check(
    benchmark: BenchmarkArgument,
    set: Set = None,
    data_root: DataRoot = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Read every image, and list those that do not decode.")
    ] = False,
    workers: Workers = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Check that a benchmark's data is there and complete.

    Example: `ctta-bench data check image_folder --data-root ~/photos`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    from ctta_bench.run.environment import usable_cores
    from ctta_bench.stream.loading import default_workers

    checked = _benchmark(benchmark, set, data_root)
    if workers is None:
        workers = default_workers(checked.decodes, usable_cores())
    problems = checked.problems()
    parts = _availability(checked, problems, decode, workers)
    problems = problems or [f"{part.name}: {part.problem}" for part in parts if part.problem]
    if as_json:
        from dataclasses import asdict

        domains = [] if problems else list(checked.chosen_domains())
        found = {"benchmark": checked.name, "problems": problems, "domains": domains}
        if not problems:
            found["classes"] = list(checked.class_names) or checked.num_classes
            found["note"] = checked.provenance
        print_json(found | {"parts": [asdict(part) for part in parts]})
    else:
        _print_parts(checked, parts, problems)
    if problems:
        raise DataError(f"{checked.name}: " + "\n  ".join(problems))


def _availability(checked: Any, problems: list[str], decode: bool, workers: int) -> list[Any]:
    """Availability of each component of the data; [] if there is none."""
    from ctta_bench.cli.terminal.progress import ConsoleProgress
    from ctta_bench.stream.availability import data_availability

    progress = ConsoleProgress(Console(stderr=True), checked.name)
    try:
        parts = data_availability(
            checked, decode=decode, workers=workers, report=progress.preparing
        )
    except DataError:
        if problems:
            return []
        raise
    finally:
        progress.finish(None)
    return parts if any(part.images is not None for part in parts) else []


def _print_parts(checked: Any, parts: list[Any], problems: list[str]) -> None:
    from ctta_bench.cli.terminal.console import plain_table

    if parts:
        words = {"stream": "in the stream", "unknown": "unknown, not read"}
        rows = [
            [p.name, words.get(p.role, p.role), f"{p.images:,}" if p.images else "missing"]
            for p in parts
            if p.role != "unknown"
        ]
        rows += [[p.name, words["unknown"], ""] for p in parts if p.role == "unknown"]
        printer().print(plain_table(["domain or set", "role", "images"], rows))
    if not problems:
        domains = checked.chosen_domains()
        typer.echo(f"{checked.name}: complete; {len(domains)} domains: {', '.join(domains)}")
        names = ": " + ", ".join(checked.class_names) if checked.class_names else ""
        typer.echo(f"{checked.num_classes} classes{names}")
        if checked.provenance:
            typer.echo(f"note: {checked.provenance}")


@command
def data_bench(
    benchmark: BenchmarkArgument,
    set: Set = None,
    data_root: DataRoot = None,
    workers: Annotated[
        str,
        option(
            panel=DATA,
            unset="0, 1, 2, 4, ... up to the cores",
            help="Numbers of loading processes to try, e.g. 0,1,4.",
        ),
    ] = "",
    batches: Annotated[
        int, option(panel=HOW, min=1, help="Batches to read with each number of processes.")
    ] = 200,
    seconds: Annotated[
        float, option(panel=HOW, min=0.1, help="Time limit for each number of processes.")
    ] = 10.0,
    cache_decoded: CacheDecoded = None,
    device: Device = None,
    plugin: Plugin = None,
    format: Format = "text",
) -> None:
    """Measure how fast a benchmark's images are read, without a model.

    Images are read in the order of the stream, decoded and moved to the device, repeatedly if the
    stream is short. On a second pass the files are in memory: use a stream larger than that.

    Example: `ctta-bench data bench fashion_c --workers 0,1`
    """
    as_json = check_format(format)
    load_plugins(plugin)
    import torch

    from ctta_bench.run.environment import chosen_device, usable_cores
    from ctta_bench.stream import Stream, batch_domains
    from ctta_bench.stream.availability import reading_speed

    numbers = _worker_numbers(workers, usable_cores())
    read = _benchmark(benchmark, set, data_root)
    read.decoded_cache = cache_decoded
    problems = read.problems()
    if problems:
        raise DataError(f"{read.name}: {problems[0]}")
    read.prepare_data(lambda what, done, total: None, usable_cores())
    stream = Stream(batch_domains(read), read.settings, 0)
    chosen = torch.device(chosen_device(device))
    speeds = [
        reading_speed(stream, n, batches=batches, seconds=seconds, device=chosen) for n in numbers
    ]
    if as_json:
        from dataclasses import asdict

        print_json([asdict(speed) for speed in speeds])
        return
    from ctta_bench.cli.terminal.console import plain_table

    rows = [
        [str(s.workers), f"{s.images_per_second:,.0f}", f"{s.start_seconds:.2f}", f"{s.images:,}"]
        for s in speeds
    ]
    columns = ["workers", "images per second", "seconds to first batch", "images read"]
    printer().print(plain_table(columns, rows, f"reading {read.name}, without a model"))


def _worker_numbers(text: str, cores: int) -> list[int]:
    """Numbers of workers to try: those given, else 0, 1, 2, 4, ... up to the cores."""
    if not text:
        return [0, *(n for n in (1, 2, 4, 8, 16, 32) if n <= cores)]
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise ConfigError(f"--workers {text!r}: write numbers from 0 up with commas, e.g. 0,1,4.")
    return numbers
