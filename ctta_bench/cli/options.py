"""Options of commands, made from the models that they fill: said there once, with help and choices.

A parameter of a command may be a dataclass of options, or a cell's options in one place:

    def run(request: Annotated[CellRequest, Asked("run")], options: RunOptions) -> None: ...

On the command line it becomes one option for each field.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from ctta_bench.config.fields import choices_of
from ctta_bench.config.request import CellRequest, option_of, options_in

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Asked:
    """Marks a parameter that takes a cell's options.

    "run": a whole CellRequest. "grid": those that were given, by name, to hold for every cell.
    """

    place: Literal["run", "grid"]


def cell_option(name: str) -> Any:
    """The option, or for a field without default the argument, of a field of `CellRequest`."""
    field = CellRequest.model_fields[name]
    option, choices, text = option_of(field), choices_of(field.annotation), field.description or ""
    assert option is not None, name
    given: Values = {
        "help": f"{text[:1].upper()}{text[1:]}.",
        "metavar": option.metavar or "|".join(choices) or None,
        "envvar": option.envvar,
        "autocompletion": completion(option.complete or (lambda: choices)),
    }
    return typer.Argument(**given) if field.is_required() else typer.Option(*option.names, **given)


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What typer asks for the words that may follow in the shell."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def expanded(command: Callable[..., Any]) -> tuple[inspect.Signature, Callable[[Values], Values]]:
    """A command's signature with one option for each field, and what fills its parameters again."""
    signature = inspect.signature(command, eval_str=True)
    groups = {p.name: _group(p.annotation) for p in signature.parameters.values()}
    parameters = [
        part
        for parameter in signature.parameters.values()
        for part in groups[parameter.name][0] or [parameter]
    ]

    def filled(values: Values) -> Values:
        arguments = {}
        for name, (parts, build) in groups.items():
            own = {part.name: values[part.name] for part in parts}
            arguments[name] = build(own) if parts else values[name]
        return arguments

    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    return signature.replace(parameters=keywords), filled


Group = tuple[list[inspect.Parameter], Callable[[Values], Any]]


def _group(annotation: Any) -> Group:
    """The options that a parameter stands for, and what makes its value of theirs; none: itself."""
    place = next(
        (m.place for m in getattr(annotation, "__metadata__", ()) if isinstance(m, Asked)), ""
    )
    if place == "run":
        return [*_cell_parameters("run")], _whole
    if place == "grid":
        return [*_cell_parameters("grid")], _given
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return [*_field_parameters(annotation)], lambda values: annotation(**values)
    return [], lambda values: None


def _cell_parameters(place: Literal["run", "grid"]) -> Iterator[inspect.Parameter]:
    for name, field in options_in(place).items():
        kind, default = _typed(field.annotation), field.default
        if place == "grid" or kind == list[str]:
            default = None
        if default is None:
            kind = kind | None
        yield _parameter(
            name,
            inspect.Parameter.empty if field.is_required() else default,
            Annotated[kind, cell_option(name)],
        )


def _field_parameters(model: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(model, include_extras=True)
    for field in dataclasses.fields(model):
        default = field.default
        yield _parameter(
            field.name,
            inspect.Parameter.empty if default is dataclasses.MISSING else default,
            hints[field.name],
        )


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _typed(annotation: Any) -> Any:
    """What typer reads for a field: a plain type, repeated KEY=VALUE for a mapping, or text."""
    if get_origin(annotation) is dict:
        return list[str]
    parts = get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((kind for kind in (bool, int, float, Path) if kind in parts), str)


def _whole(values: Values) -> CellRequest:
    from ctta_bench.config.validation import validate

    return validate(CellRequest, _assigned(values), "run")


def _given(values: Values) -> Values:
    return {name: value for name, value in _assigned(values).items() if value is not None}


def _assigned(values: Values) -> Values:
    from ctta_bench.config.validation import parse_assignments

    return values | {"set": parse_assignments(values["set"] or ())}
