"""What can go wrong, by who can mend it. The command line prints the sentence and exits with 2.

CttaBenchError
├── ConfigError   a name, key, value or combination the user gave
├── DataError     a file or folder of data or weights: missing, damaged, of the wrong shape
├── MethodError   a method that cannot serve this model or task, or broke its own contract
└── RunError      a run folder: locked, of another configuration, not writable, damaged
"""

import difflib
from collections.abc import Iterable


class CttaBenchError(Exception):
    """Base of all errors a user can mend; its text is one sentence: what, where, what to do."""


class ConfigError(CttaBenchError):
    """A name, key or value of the configuration is unknown, of the wrong type or out of range."""


class DataError(CttaBenchError):
    """Data or weights are missing, damaged or not of the stated layout."""


class MethodError(CttaBenchError):
    """A method needs what the model or benchmark lacks, or broke the contract of a method."""


class RunError(CttaBenchError):
    """A run folder cannot be used: locked, foreign, damaged or not writable."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'NAME'?` with the closest of the known names; "" if none is close."""
    close = difflib.get_close_matches(name, [*known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
