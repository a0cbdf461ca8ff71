"""The figures of a report, one file each.

Each figure is saved as PNG and PDF, with a CSV of the numbers that it draws.
"""

from ctta_bench.names import late

__getattr__ = late(__name__, "means", "stream")  # the names of `analysis.plots` in 0.1.0
