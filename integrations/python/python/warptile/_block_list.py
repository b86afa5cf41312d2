"""Which blocks of keys each block of queries sees: the `block_list` of `attention`."""

import operator

from ._arrays import library_of


class BlockList:
    """Lists of blocks of keys, a row for each block of queries, for `attention(..., block_list=...)`.

    Row `r` of a list is `indices[offsets[r]:offsets[r + 1]]`, in ascending order; a number below 0 ends it early. The lists of a sequence's
    heads follow each other. Both are arrays of int32 on the device of the queries, or on the CPU where these are. A query without
    blocks gives 0, and an lse of minus infinity.

    block_size: queries and keys of a block, 64 or 128 each, or one number for both.
    per_batch, per_head: whether each sequence, or query head, has a list of its own; or how many have, and calls of other numbers are refused.
    each: about how many blocks a row has; on a GPU a better kernel may be chosen.
    """

    def __init__(self, offsets, indices, block_size=(64, 64), *, per_batch=False, per_head=False, each=None):
        queries, keys = (block_size, block_size) if isinstance(block_size, int) else block_size
        self.offsets, self.indices = offsets, indices
        self.block_size, self.each = (queries, keys), int(each) if each is not None else None
        self.per_batch, self.per_head = _owner(per_batch), _owner(per_head)

    @property
    def arrangement(self):
        """The lists in words, such as `64x128,batch,head,12`."""
        return self.blocks if self.each is None else f"{self.blocks},{self.each}"

    @property
    def blocks(self):
        """As `arrangement`, without `each`."""
        queries, keys = self.block_size
        return f"{queries}x{keys}{_owned('batch', self.per_batch)}{_owned('head', self.per_head)}"

    @classmethod
    def from_kv_blocks(cls, kv_num_blocks, kv_indices, block_size=128, *, full=None, each=None):
        """From the numbers and indices of a `BlockMask` of torch's flex attention, of shapes `[batch or 1, heads or 1, blocks of queries]`
        and `[..., blocks of keys]`. `full` is the pair `(full_kv_num_blocks, full_kv_indices)`, whose blocks are seen as well. The mask of a
        `mask_mod` is not known here: `causal` and `window` hold inside of all blocks. Nothing waits for the device.
        """
        of = _library(kv_indices)
        rows = of.listed(kv_num_blocks, kv_indices)
        if full is not None:
            rows = of.ascending(rows, of.listed(*full))
        batch, heads, count, room = rows.shape
        offsets = of.numbers(batch * heads * count + 1, rows) * room
        return cls(offsets, rows.reshape(-1), block_size, **_owners(batch, heads), each=each)

    @classmethod
    def from_bsr(cls, crow_indices, col_indices, block_size):
        """From a block-sparse matrix, as `torch.sparse_bsr_tensor` has it: `crow_indices` are `[..., rows + 1]` and `col_indices`
        `[..., blocks]`, where `...` is nothing, `[batch]`, or `[batch or 1, heads or 1]`.
        """
        of = _library(col_indices)
        lists, blocks = crow_indices.shape[:-1], col_indices.shape[-1]
        if len(lists) > 2:
            raise ValueError(f"crow_indices has {len(lists) + 1} dimensions; it has at most batch, heads and rows")
        batch, heads = (*lists, 1, 1)[:2]
        # Every matrix has as many blocks. The end of one is the beginning of the next.
        starts = of.numbers(batch * heads, col_indices) * blocks
        crow = of.whole(crow_indices).reshape(batch * heads, -1)
        offsets = of.joined((crow[:, :-1] + starts[:, None]).reshape(-1), starts[-1:] + blocks)
        each = -(-blocks // max(crow.shape[1] - 1, 1))
        return cls(offsets, of.whole(col_indices).reshape(-1), block_size, **_owners(batch, heads), each=each)

    @classmethod
    def from_mask(cls, mask, block_size=64):
        """Of a boolean mask of shape `[batch or 1, heads or 1, blocks of queries, blocks of keys]`, the blocks that are true."""
        if len(getattr(mask, "shape", ())) != 4:
            raise ValueError("mask must be an array of shape [batch or 1, heads or 1, blocks of queries, blocks of keys]")
        of = _library(mask)
        batch, heads, rows, columns = mask.shape
        counts = mask.reshape(-1, columns).sum(-1)
        offsets = of.joined(of.numbers(1, mask), of.whole(counts.cumsum(0)))
        indices = of.whole(of.places(mask.reshape(-1, columns)))
        each = -(-indices.shape[0] // max(batch * heads * rows, 1))
        return cls(offsets, indices, block_size, **_owners(batch, heads), each=each)


def _owners(batch, heads):
    """The sequences and heads of lists that have these extents: 1 is shared."""
    return {"per_batch": batch if batch != 1 else False, "per_head": heads if heads != 1 else False}


def _owner(count):
    """True or False, also of numpy, or how many."""
    is_flag = count is None or type(count).__name__ in ("bool", "bool_")
    return bool(count) if is_flag else operator.index(count) or False


def _owned(word, count):
    return "" if count is False else f",{word}" if count is True else f",{word}={count}"


class _Numpy:
    """What is done with lists, on arrays of numpy."""

    def __init__(self):
        import numpy

        self.of = numpy

    def whole(self, numbers):
        return self.of.asarray(numbers).astype(self.of.int32)

    def numbers(self, count, like):
        return self.of.arange(count, dtype=self.of.int32)

    def joined(self, first, second):
        return self.of.concatenate([first, second])

    def places(self, mask):
        return mask.nonzero()[1]

    def listed(self, counts, indices):
        """The indices, with -1 behind the last of each row."""
        return self.of.where(self.of.arange(indices.shape[-1]) < self.of.asarray(counts)[..., None], self.whole(indices), self.of.int32(-1))

    def ascending(self, first, second):
        last = self.of.iinfo(self.of.int32).max
        rows = self.of.concatenate([first, second], axis=-1)
        rows = self.of.sort(self.of.where(rows < 0, last, rows), axis=-1)
        return self.of.where(rows == last, self.of.int32(-1), rows)


class _Torch:
    """The same on tensors of torch."""

    def __init__(self):
        import torch

        self.of = torch

    def whole(self, numbers):
        return numbers.to(self.of.int32)

    def numbers(self, count, like):
        return self.of.arange(count, dtype=self.of.int32, device=like.device)

    def joined(self, first, second):
        return self.of.cat([first, second])

    def places(self, mask):
        return mask.nonzero()[:, 1]

    def listed(self, counts, indices):
        is_listed = self.numbers(indices.shape[-1], indices) < counts[..., None]
        return self.whole(indices).where(is_listed, -1).to(self.of.int32)

    def ascending(self, first, second):
        last = self.of.iinfo(self.of.int32).max
        rows = self.of.cat([first, second], dim=-1)
        rows = rows.where(rows >= 0, last).sort(dim=-1).values
        return rows.where(rows != last, -1).to(self.of.int32)


def _library(array):
    return _Torch() if library_of(array).__name__ == "torch" else _Numpy()
