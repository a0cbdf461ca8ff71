"""The set of weights that is read from a file with several, e.g. raw and averaged ones.

`FILE` is the set under `state_dict` or `model`, or the tensors at the top level. `FILE#KEY` is the
one under another key (`model_ema`), a path of keys (`ema.module`), or a prefix of the tensors'
names (`teacher` for `teacher.head.weight`).
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from ctta_bench.errors import DataError

USUAL = ("state_dict", "model")  # keys under which trainers store the weights
WRAPPERS = ("module.", "_orig_mod.", "model.")  # prefixes that wrappers add to every name
DEPTH = 3  # levels of keys that are searched for further sets
LISTED_KEYS = 12


def located(path: Path) -> tuple[Path, str]:
    """The file or folder that `path` names, with `~` expanded, and KEY of FILE#KEY, else ""."""
    try:
        path = path.expanduser()
    except RuntimeError:  # no such user
        return path, ""
    file, _, key = str(path).rpartition("#")
    return (path, "") if not file or not key or path.exists() else (Path(file), key)


def chosen_set(
    contents: Any, key: str, wanted: Collection[str], file: Path
) -> tuple[dict[str, Tensor], str]:
    """The tensors of a set of weights, and a sentence on it if the file holds others as well.

    key: which set; "" for the usual one. wanted: names of the model's tensors. Raises DataError
    with the file's keys if there is no such set.
    """
    if not isinstance(contents, dict):
        raise DataError(f"{file}: holds no state dict, but a {type(contents).__name__}.")
    found = _under(contents, key) if key else contents
    if found is None:
        raise DataError(f"{file}: has no weights under {key!r}; {_choices(contents, file)}")
    inner, found = _usual(found)
    tensors = strip_prefix(_tensors(found), wanted)
    if not tensors:
        raise DataError(
            f"{file}: holds no tensors under {key or ' or '.join(USUAL)}; "
            f"{_choices(contents, file)}"
        )
    if not key and (prefixes := _whole_prefixes(tensors, wanted)):
        raise DataError(
            f"{file}: holds the model's weights with a prefix ({', '.join(prefixes)}); choose "
            f"with --weights {file.name}#{prefixes[0]}"
            f"{f' or #{prefixes[1]}' if len(prefixes) > 1 else ''}."
        )
    others = [path for path, group in _sets(contents) if _is_another(group, tensors, wanted)]
    if not others:
        return tensors, ""
    taken = ".".join(filter(None, (key, *inner))) or "the top level"
    return tensors, (
        f"{file.name} holds several sets of weights: {taken} is used, not {', '.join(others)}; "
        f"--weights {file.name}#{others[0]} takes another"
    )


def strip_prefix(tensors: dict[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Remove the prefix that wrappers add to every name (`module.`, `model.`, `_orig_mod.`).

    A prefix that the network's own names have is not removed.
    """
    for prefix in WRAPPERS:
        ours = any(k.startswith(prefix) for k in wanted)
        if tensors and not ours and all(k.startswith(prefix) for k in tensors):
            tensors = {k.removeprefix(prefix): v for k, v in tensors.items()}
    return tensors


def _tensors(found: dict[Any, Any]) -> dict[str, Tensor]:
    return {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, Tensor)}


def _usual(found: dict[Any, Any]) -> tuple[list[str], dict[Any, Any]]:
    """The contents under the usual keys, and these keys."""
    keys: list[str] = []
    while key := next((k for k in USUAL if isinstance(found.get(k), dict)), ""):
        keys.append(key)
        found = found[key]
    return keys, found


def _under(contents: dict[Any, Any], key: str) -> Any:
    """What is under a key, a path of keys, or a prefix of names; None if there is nothing."""
    if isinstance(contents.get(key), dict):
        return contents[key]
    _, inside = _usual(contents)
    if group := _with_prefix(_tensors(inside), key):
        return group
    first, _, rest = key.partition(".")
    deeper = contents.get(first)
    return _under(deeper, rest) if rest and isinstance(deeper, dict) else None


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


def _prefixes(tensors: dict[str, Tensor]) -> list[str]:
    return list(dict.fromkeys(k.partition(".")[0] for k in tensors if "." in k))


def _whole_prefixes(tensors: dict[str, Tensor], wanted: Collection[str]) -> list[str]:
    """Prefixes under which every tensor of the model is, if the names do not fit without."""
    if all(name in tensors for name in wanted):
        return []
    groups = {p: strip_prefix(_with_prefix(tensors, p), wanted) for p in _prefixes(tensors)}
    return [p for p, group in groups.items() if all(name in group for name in wanted)]


def _sets(contents: dict[Any, Any], path: str = "") -> Iterator[tuple[str, dict[str, Tensor]]]:
    """All dictionaries of tensors by their path of keys, and the prefixes in each."""
    tensors = _tensors(contents)
    if tensors:
        yield path or "the top level", tensors
        for prefix in _prefixes(tensors):
            group = _with_prefix(tensors, prefix)
            if len(group) < len(tensors):
                yield f"{path}.{prefix}".lstrip("."), group
    if path.count(".") < DEPTH - 1:
        for key, inner in contents.items():
            if isinstance(key, str) and isinstance(inner, dict):
                yield from _sets(inner, f"{path}.{key}".lstrip("."))


def _is_another(
    group: dict[str, Tensor], tensors: dict[str, Tensor], wanted: Collection[str]
) -> bool:
    """Whether a group is a set of the same model's weights, other than `tensors`."""
    used = {id(tensor) for tensor in tensors.values()}
    if any(id(tensor) in used for tensor in group.values()):
        return False
    alike = strip_prefix(group, wanted).keys() & tensors.keys()
    return 4 * len(alike) >= len(tensors)  # an average may have no buffers


def _choices(contents: dict[Any, Any], file: Path) -> str:
    """The keys at the top level, and the paths that hold tensors."""
    keys = [str(key) for key in contents]
    listed = ", ".join(keys[:LISTED_KEYS])
    more = f" and {len(keys) - LISTED_KEYS} more" if len(keys) > LISTED_KEYS else ""
    nested = [path for path, _ in _sets({k: v for k, v in contents.items() if isinstance(v, dict)})]
    start = f"its top-level keys are {listed}{more}" if keys else "it is empty"
    if not nested:
        return f"{start}; give a file with the weights of the model."
    return f"{start}; choose with --weights {file.name}#KEY, e.g. #{nested[0]}."
