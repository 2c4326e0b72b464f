"""Commands that take their options as objects: `@fields_as_options` makes an option of every field of a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Without:
    """In `Annotated[SomeOptions, Without("name")]`: fields that are no options of this command and keep their
    defaults."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


def fields_as_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer whose parameters may be dataclasses, their fields declared as parameters of commands are.

    ```
    @dataclass(frozen=True)
    class Where:
        data: Annotated[Path, typer.Option(help="The data.")]
        out: Annotated[Path, typer.Option(help="The result.")] = Path("out.json")

    @app.command()
    @fields_as_options
    def convert(where: Where, fast: bool = False) -> None: ...  # convert --data DIR --out FILE --fast
    ```
    """
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    options: list[inspect.Parameter] = []
    types = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *notes = get_args(types[name]) if get_origin(types[name]) is Annotated else (types[name],)
        if not is_dataclass(kind):
            options.append(parameter.replace(annotation=types[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        left_out = [field for note in notes if isinstance(note, Without) for field in note.names]
        if parameter.default is not inspect.Parameter.empty:
            raise TypeError(f"{name} of {command.__name__} has a default: give one to each field instead")
        found = options_of(kind, left_out)  # type: ignore[arg-type]
        groups[name] = kind, [option.name for option in found]  # type: ignore[assignment]
        options += found

    @wraps(command)
    def asked(**given: Any) -> None:
        for name, (kind, names) in groups.items():
            given[name] = kind(**{option: given.pop(option) for option in names if option in given})
        command(**given)

    asked.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    asked.__annotations__ = {option.name: option.annotation for option in options}
    return asked


def options_of(kind: type[Any], left_out: list[str]) -> list[inspect.Parameter]:
    """One parameter per field of a dataclass, but for those left out."""
    known = {field.name: field for field in fields(kind)}
    if unknown := set(left_out) - known.keys():
        raise TypeError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    types = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default_of(field), annotation=types[name])
        for name, field in known.items()
        if name not in left_out
    ]


def default_of(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default
