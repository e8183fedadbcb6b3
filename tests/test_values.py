"""Values are what ``dataclasses`` would have made of the same classes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from rankspawn.values import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Point:
    """A value with a secret."""

    x: int
    secret: list[int] = field(default_factory=list, repr=False)
    y: int = 3


@dataclass(frozen=True, slots=True)
class NamedPoint(Point):
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    name: str
    size: int = field(default=1, repr=False)


def test_values_by_place_and_by_name() -> None:
    assert (Point(1, [2]).secret, Point(x=1, y=4).y, NamedPoint(1, name="n").name) == ([2], 4, "n")
    assert Point(1).secret is not Point(1).secret
    assert repr(NamedPoint(1)) == "NamedPoint(x=1, y=3, name='')"
    assert repr(Named(name="n")) == "Named(name='n')"
    match Point(7):
        case Point(x, _, y):
            assert (x, y) == (7, 3)


def test_equal_where_type_and_fields_are() -> None:
    assert Point(1) == Point(1) != Point(2)
    assert Point(1) != NamedPoint(1)
    assert Point(1) != object()
    assert len({Named(name="a"), Named(name="a"), Named(name="b")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))


@pytest.mark.parametrize(
    ("values", "named", "told"),
    [
        ((), {}, r"Point\(\) needs x"),
        ((1,), {"x": 2}, "got x: unknown, or given twice"),
        ((1,), {"q": 2}, "got q: unknown, or given twice"),
        ((1, [], 2, 3), {}, "got 4 values by place: too many"),
    ],
)
def test_other_arguments_are_refused(
    values: tuple[Any, ...], named: dict[str, Any], told: str
) -> None:
    with pytest.raises(TypeError, match=told):
        Point(*values, **named)


def test_what_is_kw_only_has_no_place() -> None:
    make: Any = Named
    with pytest.raises(TypeError, match="needs name"):
        make("n")


def test_nothing_can_be_changed() -> None:
    point: Any = Point(1)
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 2
    with pytest.raises(AttributeError, match="frozen"):
        point.other = 2
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    assert not hasattr(point, "__dict__")


def test_copies_with_changes() -> None:
    assert replace(Point(1), y=5) == Point(1, y=5)
    assert dataclasses.replace(Point(1), y=5) == Point(1, y=5)
    assert copy.copy(Point(1, [2])) == Point(1, [2]) == pickle.loads(pickle.dumps(Point(1, [2])))


def test_dataclasses_knows_the_fields() -> None:
    assert [one.name for one in dataclasses.fields(NamedPoint)] == ["x", "secret", "y", "name"]
    assert dataclasses.asdict(NamedPoint(1, name="n")) == {
        "x": 1,
        "secret": [],
        "y": 3,
        "name": "n",
    }
    assert dataclasses.fields(Named)[1].default == 1
