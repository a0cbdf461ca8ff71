"""The fields of a model as text, for help, lists and docs."""

from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The values that a type allows, if it is a Literal or an optional Literal; otherwise ()."""
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    return tuple(choice for inner in get_args(annotation) for choice in choices_of(inner))


def type_text(annotation: Any) -> str:
    """A type as text: `float`, `sgd | adam | adamw`, `int | none`."""
    if get_origin(annotation) is Literal:
        return " | ".join(choices_of(annotation))
    if get_origin(annotation) is tuple:
        return f"({', '.join(map(type_text, get_args(annotation)))})"
    if isinstance(annotation, type):
        return annotation.__name__.removesuffix("Type").replace("None", "none")
    return " | ".join(map(type_text, get_args(annotation))) or str(annotation)


def range_text(constraints: Iterable[Any]) -> str:
    """The constraints of a field as text: `>= 0`, `>= 0, < 1`, `matches ^(a|b)$`; "" if none."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "pattern": "matches"}
    return ", ".join(
        f"{sign} {getattr(constraint, key)}"
        for constraint in constraints
        for key, sign in signs.items()
        if getattr(constraint, key, None) is not None
    )
