"""The data of a benchmark."""

from typing import Annotated

import typer

from ctta_bench import registry
from ctta_bench.cli.shared import DataRoot, Format, check_format, kind, print_json
from ctta_bench.errors import DataError


@kind
def data_check(
    benchmark: Annotated[str, typer.Argument(help="A benchmark.")],
    data_root: DataRoot = None,
    format: Format = "text",
) -> None:
    """Tell whether a benchmark's data is there and whole.

    Example: `ctta-bench data check image_folder --data-root ~/photos`
    """
    as_json = check_format(format)
    entry = registry.BENCHMARKS.get(benchmark)
    checked = entry(None, data_root)
    problems = checked.problems()
    domains = [] if problems else list(checked.domain_names())
    if as_json:
        print_json({"benchmark": checked.name, "problems": problems, "domains": domains})
    elif not problems:
        typer.echo(f"{checked.name}: all there; {len(domains)} domains: {', '.join(domains)}")
    if problems:
        raise DataError(f"{checked.name}: " + "\n  ".join(problems))
