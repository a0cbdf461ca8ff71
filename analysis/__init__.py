"""From run folders to tables, figures and a report. It only reads folders and needs no torch.

`load` returns tidy frames (docs/analysis.md lists their columns), `tables.main.tables` the main
tables, and `report.write.write_report` writes everything into one folder.

Example: `ctta_bench.analysis.load("runs/quickstart").results`
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctta_bench.analysis.read.collect import Runs, load

__all__ = ["Runs", "load"]


def __getattr__(name: str) -> Any:
    # Imported late: `ctta-bench status` must not load pandas.
    if name in __all__:
        from ctta_bench.analysis.read import collect

        return getattr(collect, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
