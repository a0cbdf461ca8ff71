"""What is missing before a grid can run, found before anything is submitted."""

import json
from collections.abc import Sequence

from ctta_bench.config.cell import Cell
from ctta_bench.errors import CttaBenchError
from ctta_bench.registry import BENCHMARKS, METHODS
from ctta_bench.run.open import source_images


def missing_data(cells: Sequence[Cell]) -> list[str]:
    """What the benchmarks of cells lack on this machine, each thing once; [] if all is there."""
    problems: dict[str, None] = {}
    checked: set[tuple[str, str]] = set()
    for cell in cells:
        access = METHODS.get(cell.request.method).source_access
        settings = {k: v for k, v in cell.record["benchmark"].items() if k != "batch_size"}
        key = (json.dumps([settings, str(cell.request.data_root)], default=str), access)
        if key not in checked:
            checked.add(key)
            problems |= dict.fromkeys(_problems(cell))
    return list(problems)


def _problems(cell: Cell) -> list[str]:
    benchmark = BENCHMARKS.get(cell.request.benchmark)(cell.settings, cell.request.data_root)
    try:
        found = [f"{benchmark.name}: {problem}" for problem in benchmark.problems()]
        if not found:
            method = METHODS.get(cell.request.method)
            source_images(benchmark, method.source_access, method.__name__)
    except CttaBenchError as error:
        return [str(error)]
    return found
