"""Gradients of all ranks, summed or averaged with few large messages.

Whatever their framework, gradients are bytes of some type (``buffers``). Those of one type are
copied into one array in shared memory, reduced there, and copied back.
"""

from __future__ import annotations

import sys
import weakref
from hashlib import blake2b
from math import isfinite

from rankspawn.caller import at_users_line
from rankspawn.parallel.buffers import Flat, flatten, need_numpy
from rankspawn.parallel.devices import is_on_device, reduce_on_devices
from rankspawn.parallel.environment import init_parallel_env
from rankspawn.parallel.reducing import is_float, scale

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rankspawn.parallel.communicator import Communicator

# Under the types that they have in a bucket; NumPy has no bfloat16, and bytes are bytes.
_IN_NUMPY = {"bfloat16": "uint16"}
# Where each gradient begins in a bucket: at a cache line.
_ALIGNMENT = 64
# What travels with an announcement anyway.
_SMALL = 32 << 10
_MOST_KEPT = 4
# Of the shapes in a bucket, how much is told in words: an announcement has little room.
_TOLD = 120
_buckets: weakref.WeakKeyDictionary[Communicator, Buckets] = weakref.WeakKeyDictionary()


@at_users_line
def all_reduce_gradients(
    tree: Any,
    average: bool = True,
    samples: float | None = None,
    *,
    comm: Communicator | None = None,
) -> Any:
    """The gradients of all ranks, averaged or summed, on each of them.

    All ranks call it with trees of the same structure, types and shapes. Arrays and tensors that
    can be written to get the result in place; of others, such as JAX's, there are new ones in
    the tree that is returned.

    Args:
        tree: Arrays and tensors on the CPU in dicts, lists and tuples, or any pytree of JAX.
        average: The mean over ranks rather than the sum.
        samples: How many samples this rank's gradient is the mean of: then the result is the
            mean over the samples of all ranks.
        comm: The ranks; None for all of the job.

    Returns:
        A tree of the same structure.
    """
    comm = comm or init_parallel_env()
    leaves, rebuild = open_tree(tree)
    on_devices = [leaf for leaf in leaves if is_on_device(leaf)]
    copies = [writable(leaf) for leaf in leaves]
    flats = [flatten(copy, writable=True) for copy in copies if not is_on_device(copy)]
    for flat in flats:
        if (average or samples is not None) and not is_float(flat.dtype):
            raise TypeError(f"a gradient{flat.text} has no fractions and cannot be averaged")
    weight = None if samples is None else share_of_samples(comm, samples)
    op = "avg" if average and weight is None else "sum"
    buckets_of(comm).reduce(flats, op, weight)
    reduce_on_devices(comm, on_devices, op, weight)
    return rebuild([as_given(leaf, copy) for leaf, copy in zip(leaves, copies, strict=True)])


def share_of_samples(comm: Communicator, samples: float) -> float:
    """This rank's part of the samples of all ranks.

    Raises:
        ValueError: Of a rank there are fewer than none, or no number, or no rank has any.
    """
    mine = float(samples)
    counts = comm.all_gather_object(mine)
    if not all(isfinite(count) and count >= 0 for count in counts) or not sum(counts):
        raise ValueError(
            f"samples of the ranks are {counts}: each has none or more, and at least one has some"
        )
    return mine / float(sum(counts))


class _Bucket(Flat):
    """Gradients of one type in one array: ranks with others are told, also if bytes are as many."""

    __slots__ = ("_told",)

    def __init__(
        self, array: Any, dtype: str, itemsize: int, shapes: Sequence[tuple[int, ...]]
    ) -> None:
        data = flatten(array, writable=True).data
        super().__init__(array, data, dtype, itemsize, (data.nbytes // itemsize,))
        words = " ".join(str([*shape]) for shape in shapes)
        mark = blake2b(words.encode(), digest_size=4).hexdigest()
        words = words if len(words) <= _TOLD else f"{words[:_TOLD]}…"
        self._told: str = f"{super().text} with gradients {mark} {words}"

    @property
    def text(self) -> str:
        """Type and shapes, for announcements and errors."""
        return self._told


class Buckets:
    """Arrays in shared memory, one for each type, kept for the next time."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._kept: dict[tuple[str, tuple[tuple[int, ...], ...]], _Bucket] = {}

    def reduce(self, flats: Sequence[Flat], op: str, weight: float | None = None) -> None:
        """Reduce all of them over the ranks, in place; each rank's times its weight."""
        if self._comm.size == 1:
            return
        for dtype in dict.fromkeys(flat.dtype for flat in flats):
            same = [flat for flat in flats if flat.dtype == dtype]
            if sum(flat.nbytes for flat in same):
                self._reduce_same(dtype, same, op, weight)
        for flat in flats:
            if flat.write_back is not None:
                flat.write_back()

    def _reduce_same(
        self, dtype: str, flats: Sequence[Flat], op: str, weight: float | None
    ) -> None:
        places, at = [], 0
        for flat in flats:
            places.append((at, at + flat.nbytes))
            at += -(-flat.nbytes // _ALIGNMENT) * _ALIGNMENT
        bucket = self._bucket(dtype, at, flats[0].itemsize, tuple(flat.shape for flat in flats))
        for flat, (begin, end) in zip(flats, places, strict=True):
            bucket.data[begin:end] = flat.data
        if weight is not None:
            scale(bucket.data, dtype, weight)
        self._comm.all_reduce(bucket, op)
        for flat, (begin, end) in zip(flats, places, strict=True):
            flat.data[:] = bucket.data[begin:end]

    def _bucket(
        self, dtype: str, nbytes: int, itemsize: int, shapes: tuple[tuple[int, ...], ...]
    ) -> _Bucket:
        """One for these; all ranks keep the same ones, so all make a new one or none does."""
        kept = self._kept.pop((dtype, shapes), None)
        if kept is None:
            count, plain = nbytes // itemsize, _IN_NUMPY.get(dtype, dtype)
            if nbytes > _SMALL:
                array = self._comm.empty(count, plain)
            else:
                array = need_numpy("gradients are to be exchanged").empty(count, plain)
            array.fill(0)  # what lies between two gradients is reduced as well
            kept = _Bucket(array, dtype, itemsize, shapes)
        # The one that was used last is the last.
        self._kept[dtype, shapes] = kept
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept


def buckets_of(comm: Communicator) -> Buckets:
    """Those of a communicator, for whoever has no model to keep them with."""
    found = _buckets.get(comm)
    if found is None:
        found = _buckets[comm] = Buckets(comm)
    return found


def open_tree(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree, and a function that makes a tree of others."""
    jax = sys.modules.get("jax")
    if jax is not None:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        return leaves, structure.unflatten
    leaves = []
    shape = _open(tree, leaves)
    return leaves, lambda others: _close(shape, iter(others))


class _Leaf:
    """Stands for an array in the structure of a tree."""


def _open(tree: Any, leaves: list[Any]) -> Any:
    if isinstance(tree, dict):
        opened = {key: _open(tree[key], leaves) for key in _in_order(tree)}
        return {key: opened[key] for key in tree}
    if isinstance(tree, list | tuple):
        return _sequence(type(tree), [_open(value, leaves) for value in tree])
    if tree is None:
        return None
    leaves.append(tree)
    return _Leaf


def _close(shape: Any, leaves: Any) -> Any:
    if isinstance(shape, dict):
        closed = {key: _close(shape[key], leaves) for key in _in_order(shape)}
        return {key: closed[key] for key in shape}
    if isinstance(shape, list | tuple):
        return _sequence(type(shape), [_close(value, leaves) for value in shape])
    return next(leaves) if shape is _Leaf else None


def _in_order(tree: dict[Any, Any]) -> list[Any]:
    """The keys in an order that is the same on all ranks; that of a set's texts is not."""
    try:
        return sorted(tree)
    except TypeError:
        return [*tree]


def _sequence(kind: Any, values: list[Any]) -> Any:
    """A list, a tuple or a named tuple."""
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def writable(leaf: Any) -> Any:
    """The leaf itself, or a copy if it must not be written to."""
    if is_on_device(leaf):
        return leaf
    try:
        flatten(leaf, writable=True)
    except TypeError:
        if not hasattr(leaf, "__array__"):
            raise
        return need_numpy("an array is to be copied").array(leaf)
    return leaf


def as_given(leaf: Any, copy: Any) -> Any:
    """The result as what the leaf was."""
    jax = sys.modules.get("jax")
    if copy is not leaf and jax is not None and isinstance(leaf, jax.Array):
        return jax.numpy.asarray(copy)
    return copy
