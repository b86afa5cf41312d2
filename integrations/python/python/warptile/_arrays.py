"""Operations on arrays of torch, numpy and cupy for the functions of flash_attn."""

import operator
import sys

from ._errors import InvalidInput


def library_of(array):
    """The module that makes arrays of this kind: torch, cupy or numpy."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    if type(array).__module__.partition(".")[0] == "cupy":
        return sys.modules["cupy"]
    import numpy

    return numpy


def integers(values, like):
    """A list, an array or None as `int32` numbers in the library and on the device of `like`."""
    library = library_of(like)
    if values is None:
        return None
    if library.__name__ == "torch":
        return library.as_tensor(values, dtype=library.int32, device=like.device)
    return library.asarray(values, dtype="int32")


def known(values):
    """The numbers of a list or of an array on the CPU; None for arrays on a GPU, because reading them would wait."""
    if isinstance(values, (list, tuple)):
        return list(values)
    library = library_of(values)
    if library.__name__ == "torch":
        return values.tolist() if values.is_cpu else None
    return None if library.__name__ == "cupy" else library.asarray(values).tolist()


def whole_numbers(name, values):
    """The numbers of a list or of an array on the CPU, one for each sequence; none for arrays on a GPU."""
    found = known(values)
    try:
        return [] if found is None else [operator.index(number) for number in found]
    except TypeError:
        raise InvalidInput(f"{name} must be whole numbers in the one dimension [batch]") from None


def counted(count, like):
    """0, 1, 2 and so on, `count` of them, as `integers`."""
    library = library_of(like)
    if library.__name__ == "torch":
        return library.arange(count, dtype=library.int32, device=like.device)
    return library.arange(count, dtype="int32")


def sequence_of(rows, offsets):
    """The number of the sequence that each row belongs to, by the offsets at which sequences begin."""
    library = library_of(offsets)
    if library.__name__ == "torch":
        return library.searchsorted(offsets, rows, right=True, out_int32=True) - 1
    return library.searchsorted(offsets, rows, side="right").astype("int32") - 1


def converted(array, dtype):
    """The array with elements of another type of its library."""
    return array.to(dtype) if library_of(array).__name__ == "torch" else array.astype(dtype)


def filled(count, value, like):
    """The same number `count` times, as `integers`."""
    library = library_of(like)
    if library.__name__ == "torch":
        return library.full((count,), value, dtype=library.int32, device=like.device)
    return library.full(count, value, dtype="int32")


def empty(shape, like):
    """An array of the type and on the device of `like`."""
    library = library_of(like)
    return like.new_empty(shape) if library.__name__ == "torch" else library.empty(shape, like.dtype)


def row_contiguous(array):
    """The array; of torch, numpy and cupy a copy of it if its last dimension is not contiguous."""
    try:
        return array if array.stride(-1) == 1 else array.contiguous()
    except (AttributeError, IndexError):
        # An array of another library, or a tensor without dimensions, which is refused later.
        name = type(array).__module__.partition(".")[0]
    if name in ("numpy", "cupy") and array.ndim and array.strides[-1] != array.itemsize:
        return sys.modules[name].ascontiguousarray(array)
    return array


def detached(array):
    """The same elements without a gradient."""
    return array.detach() if getattr(array, "requires_grad", False) else array


def at_columns(table, columns):
    """Of each row of a table the entries at that row's `columns`."""
    library = library_of(table)
    if library.__name__ == "torch":
        return table.gather(1, columns.long())
    return library.take_along_axis(table, columns, 1)


def widened(array, size):
    """A copy whose last dimension is padded with zeros to `size`."""
    library = library_of(array)
    missing = size - array.shape[-1]
    if library.__name__ == "torch":
        return library.nn.functional.pad(array, (0, missing))
    return library.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])


def wider(array, size):
    """Zeros of the array's shape, with `size` elements in the last dimension."""
    library, shape = library_of(array), (*array.shape[:-1], size)
    return array.new_zeros(shape) if library.__name__ == "torch" else library.zeros(shape, array.dtype)


def parts(name, packed, count, rows="batch, length"):
    """The `count` tensors that are stacked before heads and head size, without a copy."""
    shape, rule = tuple(getattr(packed, "shape", ())), f"[{rows}, {count}, heads, head size]"
    if len(shape) != rule.count(",") + 1 or shape[-3] != count:
        raise InvalidInput(f"{name} has shape {list(shape)}; it must be {rule}")
    library = library_of(packed)
    if library.__name__ == "torch":
        return packed.unbind(-3)
    return tuple(library.moveaxis(packed, -3, 0))


def viewed(array, shape):
    """The same elements in another shape, or None where that takes a copy."""
    library = library_of(array)
    if library.__name__ == "torch":
        try:
            return array.view(shape)
        except RuntimeError:
            return None
    view = array.reshape(shape)
    return view if library.may_share_memory(view, array) or view.size == 0 else None
