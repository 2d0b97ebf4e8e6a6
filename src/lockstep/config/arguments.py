"""The arguments that a class or function takes: their names, and the types that their annotations give to plain values."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, Literal, Union, get_args, get_origin

from lockstep.errors import config_error

_PLAIN = (bool, int, float, str, types.NoneType, Literal, list, tuple, Sequence)


class Arguments:
    """The keyword arguments of a target.

    Attributes:
        own: those that it names itself.
        takes_others: True if it passes **others on.
        types: the annotation of each name, Any where there is none; with those of its bases to which a class passes others on.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self.own, self.takes_others = _named(target)
        self.types: dict[str, Any] = {}
        bases = target.__mro__[:-1] if isinstance(target, type) else ()
        for function in [base.__init__ for base in bases if "__init__" in vars(base)] or [target]:
            named, passes_on = _named(function)
            try:
                hints = typing.get_type_hints(function)
            except Exception:  # names that exist for type checkers only
                hints = {}
            kinds = {name: (hints.get(name, Any), one.default) for name, one in named.items() if name != "self"}
            self.types = {name: kind | None if default is None else kind for name, (kind, default) in kinds.items()} | self.types
            if not passes_on:
                break

    def takes(self, name: str) -> bool:
        return self.takes_others or name in self.own

    def check(self, key: str, values: Mapping[str, Any]) -> None:
        """Raise ConfigError for a name that is not accepted, and for a plain value of another type."""
        for name, value in values.items():
            if not self.takes(name):
                raise config_error(f"{key}.{name}", shown(value), f"no such argument; use {', '.join(self.own) or 'none'}")
            if not (isinstance(value, Mapping) and "_target_" in value):
                check_type(f"{key}.{name}", value, self.types.get(name, Any))


arguments_of = functools.cache(Arguments)


def _named(function: Callable[..., Any]) -> tuple[dict[str, Parameter], bool]:
    """Return the keyword arguments, and whether others are accepted, which a class written in C may do."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return {}, True
    named = {one.name: one for one in parameters if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    return named, any(one.kind is Parameter.VAR_KEYWORD for one in parameters)


def check_type(key: str, value: object, annotation: Any) -> None:
    """Raise ConfigError for a value of none of the plain types in an annotation. A class fits every value, except text where a
    number is accepted too."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    if isinstance(value, str) and {int, float} & {*kinds}:
        kinds = [kind for kind in kinds if kind is str or get_origin(kind) is Literal]
    if not any(_is_of(value, kind) for kind in kinds):
        raise config_error(key, shown(value), f"use a value of type {inspect.formatannotation(annotation)}")


def _is_of(value: object, annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if kind is Literal:
        return value in get_args(annotation)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind in (list, tuple, Sequence):
        return isinstance(value, list | tuple)
    return kind not in _PLAIN or isinstance(value, kind)


def shown(value: object) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
