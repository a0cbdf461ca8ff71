"""From run folders to tables, figures and a report. Reads folders only; knows no model.

`load` gives tidy frames (docs/analysis.md lists their columns), `tables.tables` the tables of a
paper, `report.write_report` all of it as one folder, `status.status` the state of every cell.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctta_bench.analysis.read.collect import Runs, load

__all__ = ["Runs", "load"]


def __getattr__(name: str) -> Any:
    # Late, for `ctta-bench status` must not wait for pandas.
    if name in __all__:
        from ctta_bench.analysis.read import collect

        return getattr(collect, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
