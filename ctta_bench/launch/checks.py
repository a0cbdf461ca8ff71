"""What is missing before a grid can run, found before anything is submitted."""

import json
from collections.abc import Sequence

from ctta_bench.config import Cell
from ctta_bench.errors import CttaBenchError
from ctta_bench.registry import BENCHMARKS, METHODS


def missing_data(cells: Sequence[Cell]) -> list[str]:
    """What the benchmarks of cells lack on this machine, each thing once; [] if all is there."""
    problems: dict[str, None] = {}
    checked: set[tuple[str, bool]] = set()
    for cell in cells:
        needs_source = METHODS.get(cell.request.method).source_access != "none"
        settings = {k: v for k, v in cell.record["benchmark"].items() if k != "batch_size"}
        key = (json.dumps([settings, str(cell.request.data_root)], default=str), needs_source)
        if key not in checked:
            checked.add(key)
            problems |= dict.fromkeys(_problems(cell, needs_source))
    return list(problems)


def _problems(cell: Cell, needs_source: bool) -> list[str]:
    benchmark = BENCHMARKS.get(cell.request.benchmark)(cell.settings, cell.request.data_root)
    try:
        found = [f"{benchmark.name}: {problem}" for problem in benchmark.problems()]
        if needs_source and not found and benchmark.source() is None:
            place = benchmark.source_place()
            where = f"; put it in {place}" if place else ""
            found.append(
                f"{benchmark.name}: has no source set, which {cell.request.method} reads{where}."
            )
    except CttaBenchError as error:
        return [str(error)]
    return found
