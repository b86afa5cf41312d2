"""Where the keys of each sequence lie in a cache, as `attention` and `write_cache` take it."""

from dataclasses import dataclass
from typing import Any

from ._arrays import at_columns, counted, integers, viewed, whole_numbers
from ._errors import InvalidInput

# The most rows of a page that attention takes.
_MOST_ROWS = 256


def _largest_divisor(rows):
    """The most rows of a page of equal pages."""
    return max(size for size in range(1, _MOST_ROWS + 1) if rows % size == 0)


@dataclass
class Cache:
    """A cache, with the numbers of the pages of each sequence, or None if they have one page each."""

    k: Any
    v: Any
    block_table: Any = None

    @property
    def rows(self):
        """The most rows that a sequence can have."""
        of_page = self.k.shape[1]
        if self.block_table is None:
            return of_page
        # The native module refuses anything that is not a table.
        shape = getattr(self.block_table, "shape", ())
        return shape[1] * of_page if len(shape) == 2 else 0

    def chosen(self, batch_idx):
        """The cache whose sequence `b` is this one's `batch_idx[b]`."""
        if batch_idx is None:
            return self
        table = integers(self.block_table, self.k)
        name, entries = ("k_cache", self.k) if table is None else ("block_table", table)
        for index, entry in enumerate(whole_numbers("cache_batch_idx", batch_idx)):
            # An index of an array may be negative, but a sequence's number is not.
            if not 0 <= entry < entries.shape[0]:
                raise InvalidInput(f"cache_batch_idx[{index}] is {entry}, but {name} has {entries.shape[0]} sequences")
        batch_idx = integers(batch_idx, self.k)
        if table is not None:
            return Cache(self.k, self.v, table[batch_idx])
        rows = self.k.shape[1]
        page = _largest_divisor(rows)
        first = batch_idx[:, None] * (rows // page)
        return Cache(*self._pages(page), first + counted(rows // page, self.k)[None])

    def without(self, leftpad):
        """For attention: the cache whose sequences begin `leftpad[b]` rows later, in pages of one row."""
        if leftpad is None:
            return self
        leftpad = integers(leftpad, self.k)
        of_page, rows = self.k.shape[1], self.rows
        row = (leftpad[:, None] + counted(rows, self.k)[None]).clip(0, rows - 1)
        if self.block_table is None:
            table = counted(leftpad.shape[0], self.k)[:, None] * rows + row
        else:
            table = at_columns(integers(self.block_table, self.k), row // of_page) * of_page + row % of_page
        return Cache(*self._pages(1), table)

    def readable(self):
        """For attention: the cache with pages of no more rows than its kernels take."""
        rows = self.k.shape[1]
        if self.block_table is None or rows <= _MOST_ROWS:
            return self
        piece = _largest_divisor(rows)
        pieces = counted(rows // piece, self.k)
        table = integers(self.block_table, self.k)[:, :, None] * (rows // piece) + pieces
        return Cache(*self._pages(piece), table.reshape(table.shape[0], -1))

    def _pages(self, size):
        """Keys and values in pages of fewer rows."""
        entries, rows = self.k.shape[:2]
        return (self._flat(name, (entries * rows // size, size)) for name in ("k", "v"))

    def _flat(self, name, first):
        array = getattr(self, name)
        view = viewed(array, (*first, *array.shape[2:]))
        if view is None:
            raise InvalidInput(
                f"{name}_cache has gaps between its sequences or pages, which cache_batch_idx and cache_leftpad do not work with"
            )
        return view
