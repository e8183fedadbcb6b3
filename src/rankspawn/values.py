"""Frozen values, as ``dataclasses`` makes them, without what making them costs.

``dataclasses`` writes the methods of each class as text and compiles it, 0.3 to 3 ms a class,
and imports ``inspect``, which takes 4 ms more. Where each start pays that, before any worker
runs, values are made by this module: the same decorator with the same meaning, for checkers the
very same one, with methods that all such classes share. What it knows is what is used here:
``frozen`` and ``slots``, both always, ``kw_only``, defaults, ``default_factory`` and ``repr``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import Any

_set = object.__setattr__
_NO_DEFAULT = object()


class _Field:
    """What was said of a field beside its type."""

    __slots__ = ("default", "factory", "is_shown")

    def __init__(
        self,
        *,
        default: object = _NO_DEFAULT,
        default_factory: Callable[[], object] | None = None,
        repr: bool = True,
    ) -> None:
        self.default, self.factory, self.is_shown = default, default_factory, repr


class _Layout:
    """The fields of a class, those of its bases first."""

    __slots__ = ("defaults", "factories", "hidden", "names", "positional", "real")

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.positional: tuple[str, ...] = ()
        self.defaults: dict[str, object] = {}
        self.factories: dict[str, Callable[[], object]] = {}
        self.hidden: frozenset[str] = frozenset()
        self.real: Mapping[str, Any] | None = None


class _RealFields:
    """The fields as ``dataclasses`` has them, made when its functions ask for them."""

    __slots__ = ()

    def __get__(self, value: object, cls: type[Any]) -> Mapping[str, Any]:
        layout: _Layout = cls.__layout__
        if layout.real is not None:
            return layout.real
        import dataclasses

        fields: list[tuple[str, object, Any]] = []
        for name in layout.names:
            more: dict[str, Any] = {"repr": name not in layout.hidden, "kw_only": True}
            if name in layout.defaults:
                more["default"] = layout.defaults[name]
            elif name in layout.factories:
                more["default_factory"] = layout.factories[name]
            fields.append((name, object, dataclasses.field(**more)))
        # Only to be read: no object of that class is ever made.
        twin: Any = dataclasses.make_dataclass(cls.__name__, fields, eq=False)
        layout.real = found = dict(twin.__dataclass_fields__)
        return found


def _make(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type[Any]], type[Any]]:
    assert frozen, "what can be changed is for dataclasses"
    assert slots, "what has a dictionary is for dataclasses"

    def make(cls: type[Any]) -> type[Any]:
        space = dict(cls.__dict__)
        layout = _Layout()
        for base in reversed(cls.__mro__[1:]):
            of_base: _Layout | None = base.__dict__.get("__layout__")
            if of_base is not None:
                layout.names, layout.positional = of_base.names, of_base.positional
                layout.defaults |= of_base.defaults
                layout.factories |= of_base.factories
                layout.hidden |= of_base.hidden
        own = tuple(space.get("__annotations__") or cls.__annotations__)
        for name in own:
            said = space.pop(name, _NO_DEFAULT)
            one = said if isinstance(said, _Field) else _Field(default=said)
            if one.default is not _NO_DEFAULT:
                layout.defaults[name] = one.default
            if one.factory is not None:
                layout.factories[name] = one.factory
            if not one.is_shown:
                layout.hidden |= {name}
        layout.names += own
        layout.positional += () if kw_only else own
        for name in ("__dict__", "__weakref__"):
            space.pop(name, None)
        for name, method in _METHODS.items():
            space.setdefault(name, method)
        space |= {"__slots__": own, "__layout__": layout, "__match_args__": layout.positional}
        if "__hash__" not in cls.__dict__:
            space["__hash__"] = _hash
        kind: Any = type(cls)  # a class with slots cannot be made out of one without
        made: type[Any] = kind(cls.__name__, cls.__bases__, space)
        made.__qualname__ = cls.__qualname__
        return made

    return make


def _init(self: Any, /, *values: object, **named: object) -> None:
    layout: _Layout = self.__layout__
    given = dict(zip(layout.positional, values, strict=False))
    wrong = [name for name in named if name in given or name not in layout.names]
    complete = {**layout.defaults, **given, **named}
    for name, factory in layout.factories.items():
        if name not in complete:
            complete[name] = factory()
    missing = [name for name in layout.names if name not in complete]
    if missing:
        raise TypeError(f"{type(self).__name__}() needs {', '.join(missing)}")
    if wrong:
        raise TypeError(f"{type(self).__name__}() got {', '.join(wrong)}: unknown, or given twice")
    if len(values) > len(layout.positional):
        raise TypeError(f"{type(self).__name__}() got {len(values)} values by place: too many")
    for name in layout.names:
        _set(self, name, complete[name])


def _values(value: Any) -> tuple[object, ...]:
    return tuple([getattr(value, name) for name in value.__layout__.names])


def _repr(self: Any) -> str:
    layout: _Layout = self.__layout__
    shown = [name for name in layout.names if name not in layout.hidden]
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return self is other or _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse(self: Any, name: str, _: object = None) -> None:
    raise AttributeError(f"{type(self).__name__}.{name} cannot be changed: it is a frozen value")


def _get_state(self: Any) -> tuple[object, ...]:
    return _values(self)


def _set_state(self: Any, state: tuple[object, ...]) -> None:
    for name, value in zip(self.__layout__.names, state, strict=True):
        _set(self, name, value)


def _replace(value: Any, /, **changes: object) -> Any:
    """A copy of a value with some fields changed."""
    return type(value)(**dict(zip(value.__layout__.names, _values(value), strict=True), **changes))


_METHODS: dict[str, object] = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
    "__replace__": _replace,
    "__dataclass_fields__": _RealFields(),
}

if not TYPE_CHECKING:
    dataclass, field, replace = _make, _Field, _replace
