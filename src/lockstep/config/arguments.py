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
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Arguments:
    """The keyword arguments of a target.

    Attributes:
        own: those that it names itself.
        types: the annotation of each name, Any where there is none. Where a class passes **others on, its bases' too.
        takes_others: True if it passes **others on.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        parameters = _parameters(target)
        self.own = {name: one for name, one in parameters.items() if one.kind in _NAMED}
        self.takes_others = _passes_on(parameters)
        self.types: dict[str, Any] = {}
        bases = target.__mro__[:-1] if isinstance(target, type) else ()
        for function in [base.__init__ for base in bases if "__init__" in vars(base)] or [target]:
            self.types = _annotations(function) | self.types
            if not _passes_on(_parameters(function)):
                break

    def takes(self, name: str) -> bool:
        return self.takes_others or name in self.own

    def check(self, key: str, values: Mapping[str, Any]) -> None:
        """Raise ConfigError for a name that is not accepted, and for a plain value of another type."""
        for name, value in values.items():
            if not self.takes(name):
                raise config_error(f"{key}.{name}", shown(value), f"no such argument; use {', '.join(self.own) or 'none'}")
            annotation = self.types.get(name, Any)
            if not (isinstance(value, Mapping) and "_target_" in value) and not fits(value, annotation):
                raise config_error(f"{key}.{name}", shown(value), f"use a value of type {inspect.formatannotation(annotation)}")


arguments_of = functools.cache(Arguments)


def _parameters(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # a class written in C has none: it may accept whatever it is given
        return {"others": Parameter("others", Parameter.VAR_KEYWORD)}


def _passes_on(parameters: Mapping[str, Parameter]) -> bool:
    return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # names that exist for type checkers only
        hints = {}
    named = {name: one for name, one in _parameters(function).items() if one.kind in _NAMED and name != "self"}
    kinds = {name: hints.get(name, Any) for name in named}
    return {name: kind | None if named[name].default is None else kind for name, kind in kinds.items()}


def fits(value: object, annotation: Any) -> bool:
    """Return False for a value of none of the plain types in an annotation. One that names a class fits every value, but text
    where a number is accepted too."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    kinds = get_args(annotation) if is_union else (annotation,)
    if isinstance(value, str) and {int, float} & {*kinds}:
        kinds = [kind for kind in kinds if kind is str or get_origin(kind) is Literal]
    return any(_is_of(value, kind) for kind in kinds)


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
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return str(value)
