"""A table: its rows, notes and missing cells, and its Markdown, LaTeX and CSV."""

from ctta_bench.names import late

__getattr__ = late(__name__, "table")  # as in 0.1.0
