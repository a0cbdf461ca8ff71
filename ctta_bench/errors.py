"""Errors that a user can correct. The command line prints their message and exits with status 2.

CttaBenchError
├── ConfigError   a name, key, value or combination in the configuration
├── DataError     a file or folder of data or weights: missing, damaged, of the wrong shape
├── MethodError   a method that does not support this model or task, or broke the method contract
└── RunError      a run folder: locked, of another configuration, not writable, damaged

    try:
        method = ctta_bench.load_method("dept", model)
    except ctta_bench.errors.MethodError as error:
        print(error)  # DePT does not support my_resnet: ...
"""

import difflib
from collections.abc import Iterable
from pathlib import Path


class CttaBenchError(Exception):
    """Base of all errors that a user can correct. The message: what, where, what to do."""


class ConfigError(CttaBenchError):
    """A name, key or value of the configuration is unknown, of the wrong type or out of range."""


class DataError(CttaBenchError):
    """Data or weights are missing, damaged or not of the stated layout."""


class MethodError(CttaBenchError):
    """A method does not support the model or benchmark, or broke the method contract."""


class RunError(CttaBenchError):
    """A run folder cannot be used: locked, of another configuration, damaged, not writable."""


def expanded(path: str | Path) -> Path:
    """A path that a user gives, with `~` or `~NAME` as the home folder. Raises ConfigError."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: there is no such home folder; write the whole path.") from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'NAME'?` with the closest of the known names; "" if none is close."""
    close = difflib.get_close_matches(name, [*known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def counted(count: int, noun: str) -> str:
    """`1 round`, `3 rounds`, `1,500 cells`, `2 processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}" + ending * bool(count != 1)
