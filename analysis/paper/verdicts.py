"""How far each method is from its official implementation: the verdicts stored with the suite.

`ctta-bench parity` computes them; reference/parity.csv is written again when cases or methods
change. A report only reads the file.
"""

import functools
from pathlib import Path

import pandas as pd

_FILE = Path(__file__).parents[1] / "reference" / "parity.csv"
_COMMIT = 7  # digits


def parity_summary(method: str) -> str:
    """The verdict on a method of the suite in a sentence, with the command that repeats it."""
    own = verdicts()
    own = own[own["method"] == method]
    if own.empty:
        return "no reference outputs of an official implementation are recorded"
    equal = int((own["verdict"] == "equal").sum())
    cases = "1 case" if len(own) == 1 else f"{len(own)} cases"
    share = "equal" if equal == len(own) == 1 else "all equal"
    low, high = own["tolerance"].min(), own["tolerance"].max()
    allowed = f"{low:.1g}" if low == high else f"{low:.1g} to {high:.1g}"
    return (
        f"{cases} recorded from {_sources(own)}; "
        f"{share if equal == len(own) else f'{equal} equal'}, largest difference "
        f"{own['difference'].max():.1g} where {allowed} is allowed. The result is stored with the "
        f"suite; `ctta-bench parity {method}` replays the cases"
    )


@functools.cache
def verdicts() -> pd.DataFrame:
    """method, case, source, commit, difference, tolerance and verdict of each reference case."""
    return pd.read_csv(_FILE, dtype={"commit": str}, keep_default_na=False)


def _sources(cases: pd.DataFrame) -> str:
    """`OWNER/NAME (commit abc1234)`, one after the other."""
    pairs = cases[["source", "commit"]].drop_duplicates().itertuples(index=False)
    return ", ".join(
        f"{source} ({_version(commit)})" if source != "-" else "a plain forward pass of the network"
        for source, commit in pairs
    )


def _version(commit: str) -> str:
    first = commit.split()[0]
    return first if "." in first else f"commit {first[:_COMMIT]}"
