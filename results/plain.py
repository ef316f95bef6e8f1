"""Records as plain values and strict JSON. Nothing read is ever evaluated, unpickled or imported."""

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Self

from tuner.search_spaces.errors import UsageError, nearest_name
from tuner.search_spaces.family import families
from tuner.search_spaces.problem import Problem

from .errors import BadRecordError

# SQLite's and PostgreSQL's largest integers have 64 bits.
_MAX_INTEGER = 2**63 - 1


def plain(value: Any) -> Any:
    """`value` as JSON has it: dicts, lists, text and finite numbers; NaN and infinities become None."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Problem):
        return {"kernel": value.kernel, **value.to_dict()}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no place in a record")


def to_json(value: Any) -> str:
    """Strict JSON on one line with sorted keys: null where a number is not finite."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> dict[str, Any]:
    """The object that strict JSON holds.

    Raises:
      BadRecordError: anything else, NaN and Infinity included.
    """
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadRecordError(f"not strict JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadRecordError(f"a JSON {type(found).__name__}, not an object")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Record:
    """A dataclass that travels as plain values."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON has it."""
        fields: dict[str, Any] = plain(self)
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The record of these fields; those left out take their defaults.

        Raises:
          BadRecordError: an unknown or missing field, or a value of the wrong type.
        """
        if not isinstance(fields, Mapping):
            raise BadRecordError(f"{cls.__name__}: {fields!r} is not an object")
        kind: Any = cls
        known, needed = _fields(kind)
        for name in fields:
            if name not in known:
                raise BadRecordError(f"{cls.__name__}: unknown field {name!r}", fix=nearest_name(name, known))
        if missing := needed - fields.keys():
            raise BadRecordError(f"{cls.__name__}: {', '.join(sorted(missing))} missing")
        try:
            return cls(**{name: known[name](value) for name, value in fields.items()})
        except BadRecordError as error:
            raise BadRecordError(f"{cls.__name__}: {error.message}", fix=error.fix) from error


Decoder = Callable[[Any], Any]


@functools.cache
def _fields(cls: type[Any]) -> tuple[dict[str, Decoder], frozenset[str]]:
    """The decoder of every field, and the fields that have no default."""
    hints = typing.get_type_hints(cls)
    known, needed = {}, set()
    for field in dataclasses.fields(cls):
        known[field.name] = _named(field.name, _decoder(hints[field.name]))
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            needed.add(field.name)
    return known, frozenset(needed)


def _named(name: str, decode: Decoder) -> Decoder:
    def named(value: Any) -> Any:
        try:
            return decode(value)
        except BadRecordError as error:
            raise BadRecordError(f"{name}: {error.message}", fix=error.fix) from error

    return named


@functools.cache
def _decoder(hint: Any) -> Decoder:
    """What turns a JSON value into the type a record declares, or raises BadRecordError."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return _any_of(tuple(map(_decoder, arguments)))
    if origin is tuple:
        return _many(_decoder(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_decoder(arguments[1]))
    if hint is Problem:
        return problem_from_dict
    if issubclass(hint, Record):
        read: Decoder = hint.from_dict
        return read
    return _scalar(hint)


def _scalar(kind: type[Any]) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) is kind and not (kind is int and abs(value) > _MAX_INTEGER):
            return value
        if kind is float and type(value) is int and abs(value) <= _MAX_INTEGER:
            return float(value)
        raise BadRecordError(f"{value!r} is not a {kind.__name__}"[:200])

    return decode


def _any_of(decoders: tuple[Decoder, ...]) -> Decoder:
    def decode(value: Any) -> Any:
        for decoder in decoders[:-1]:
            try:
                return decoder(value)
            except BadRecordError:
                continue
        return decoders[-1](value)

    return decode


def _many(decoder: Decoder) -> Decoder:
    def decode(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise BadRecordError(f"{value!r} is not a list"[:200])
        return tuple(map(decoder, value))

    return decode


def _mapping(decoder: Decoder) -> Decoder:
    def decode(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise BadRecordError(f"{value!r} is not an object"[:200])
        return {str(name): decoder(item) for name, item in value.items()}

    return decode


def problem_from_dict(fields: Mapping[str, Any]) -> Problem:
    """The problem of these fields and its `kernel`.

    A kernel of the user's own is known once its module is loaded; nothing is imported because a
    record names it.

    Raises:
      BadRecordError: an unknown kernel, field or value.
    """
    if not isinstance(fields, Mapping):
        raise BadRecordError(f"{fields!r} is not an object"[:200])
    given = dict(fields)
    problem_class = _problem_class(str(given.pop("kernel", None)))
    try:
        return problem_class.from_dict(given)
    except (UsageError, TypeError) as error:
        raise BadRecordError(str(error)) from error


@functools.cache
def _problem_class(kernel: str) -> type[Problem]:
    # A class with slots is made twice, the one in use last.
    loaded = {found.kernel: found for found in _subclasses(Problem) if hasattr(found, "kernel")}
    loaded |= {family.kernel: family.problem_class for family in families().values()}
    if kernel not in loaded:
        raise BadRecordError(f"unknown kernel {kernel!r}", fix=nearest_name(kernel, loaded))
    return loaded[kernel]


def _subclasses(cls: type[Problem]) -> Iterator[type[Problem]]:
    for found in cls.__subclasses__():
        yield found
        yield from _subclasses(found)
