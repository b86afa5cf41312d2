"""Attention of sequences whose rows are dealt out to the ranks of a torch process group, with gradients.

`ContextParallel` deals rows out and attends. Each rank computes its own rows. `torch.distributed` gathers keys and values, and gives their
gradients back to their owners; it only moves bytes. The owners sum gradients in float32, in the order of ranks: the same bits each time.
`warptile.ring_flash_attn` has the names of ring_flash_attn.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ._arrays import row_contiguous
from ._errors import InvalidInput, Unsupported, refuse_second_derivatives
from ._native import attention_backward, attention_without_gradient
from .flash_attn import merged

__all__ = ["ContextParallel"]

# The calls on which the ranks of a group agreed.
_AGREED: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()

_SHARDINGS = ("zigzag", "contiguous")


class ContextParallel:
    """The ranks of a process group that share sequences.

    Args:
        group: A process group, or a dimension of a `DeviceMesh` such as `mesh["cp"]`; the default group if not given.
        sharding: `"zigzag"`: there are twice as many chunks as ranks, and rank `r` has chunk `r` and the one as far from the end, which
            balances causal attention. `"contiguous"`: one chunk a rank. Packed documents are dealt out one by one.

    Lengths need not be divisible by the number of ranks. All ranks make the same calls in the same order.
    """

    def __init__(self, group: Any = None, sharding: str = "zigzag"):
        if sharding not in _SHARDINGS:
            raise InvalidInput(f"sharding is {sharding!r}; it is one of {', '.join(map(repr, _SHARDINGS))}")
        self.group = group.get_group() if hasattr(group, "get_group") else group
        self.sharding = sharding
        self.rank = dist.get_rank(self.group)
        self.ranks = dist.get_world_size(self.group)

    def rows(self, length: int, cu_seqlens: Tensor | Sequence[int] | None = None) -> Tensor:
        """The numbers of this rank's rows among `length` rows, or those of packed documents: its position ids, for one."""
        return _rows(_offsets(length, cu_seqlens), self.sharding, self.rank, self.ranks)

    def shard(self, x: Tensor, dim: int = 1, cu_seqlens: Tensor | Sequence[int] | None = None) -> Tensor:
        """This rank's rows of a tensor that all ranks have."""
        return x.index_select(dim, self.rows(x.shape[dim], cu_seqlens).to(x.device))

    def unshard(self, x: Tensor, length: int | None = None, dim: int = 1, cu_seqlens: Tensor | Sequence[int] | None = None) -> Tensor:
        """All rows of a sharded tensor, on every rank; without a gradient. `length` as in `attention`."""
        length = self._length(x.shape[dim], length, cu_seqlens)
        plan = _plan(_offsets(length, cu_seqlens), self.sharding, self.rank, self.ranks, Mask(False, (-1, -1)), cu_seqlens is not None)
        plan.check("x", x.shape[dim], self.rank)
        moved = x.detach().movedim(dim, 0).unsqueeze(0)
        return _gather([moved], plan, self.group)[0].squeeze(0).movedim(0, dim)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        window: tuple[int | None, int | None] = (-1, -1),
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        length: int | None = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention of sequences to themselves; each rank has its rows of q, k, v and the output.

        Args:
            q: This rank's queries, `[batch, rows, heads, head size]`; with `cu_seqlens` `[rows, heads, head size]`.
            k: This rank's keys; as many rows. Their heads may be fewer than q's, if they divide them.
            v: This rank's values.
            causal: Whether a query sees no key after itself.
            window: How many keys before and after itself a query sees; -1 is no limit.
            scale: Factor of the scores; `1 / sqrt(head size)` if not given.
            softcap: Bounds the scores: `softcap * tanh(score / softcap)`.
            sinks: A logit for each query head, the same on all ranks. Its gradient is that of this rank's rows: sum it over the group, as
                those of other parameters.
            cu_seqlens: Row offsets of packed documents, counted over all ranks; on the host, or the call waits for the GPU.
            length: Rows on all ranks together; as many on each rank if not given.
            return_lse: Whether to return `(out, lse)`. The lse is `[batch, heads, rows]`, packed `[heads, rows]`, and has no gradient.

        Returns:
            The output of this rank's rows.
        """
        packed = cu_seqlens is not None
        at = 0 if packed else 1
        left, right = (-1 if side is None else side for side in window)
        mask = Mask(causal, (left, 0 if causal else right))
        refused = None
        try:
            for name, x in (("q", q), ("k", k), ("v", v)):
                if x.dim() != 4 - packed:
                    shape = "[rows, heads, head size]" if packed else "[batch, rows, heads, head size]"
                    raise InvalidInput(f"{name} has shape {list(x.shape)}; it needs {shape}")
            length = self._length(q.shape[at], length, cu_seqlens)
            plan = _plan(_offsets(length, cu_seqlens), self.sharding, self.rank, self.ranks, mask, packed)
            for name, x in (("q", q), ("k", k), ("v", v)):
                plan.check(name, x.shape[at], self.rank)
        except InvalidInput as error:
            # The other ranks would wait for this one. The error itself would keep the frames of its traceback, and so the group, alive.
            refused = str(error)
        options = {"scale": scale, "softcap": softcap}
        shapes = tuple((str(x.dtype), *x.shape[:at], *x.shape[at + 1 :]) for x in (q, k, v))
        self._agree(
            {
                "shapes": shapes,
                # Batches of documents differ from step to step.
                "length": None if packed else length,
                "sharding": self.sharding,
                "causal": causal,
                "window": (left, right),
                "sinks": sinks is not None,
                **options,
            },
            refused,
        )
        return attend(q, k, v, sinks, plan, self.group, options, return_lse)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor | None = None, return_lse: bool = False, **options: Any) -> Any:
        """Attention of queries that all ranks have to keys of which each rank has some, such as the pages of its own cache.

        Each rank attends to its keys, and the results are merged on every rank, in the order of ranks: the same bits on each. A rank may
        have no keys. There is no gradient.

        Args:
            q: The queries, the same on all ranks.
            k: This rank's keys, of sequences or in pages.
            v: This rank's values.
            sinks: As in `attention`; the same on all ranks.
            return_lse: Whether to return `(out, lse)`.
            options: Those of `warptile.attention` for this rank's keys, such as `block_table` and `seqused_k`. Options by which a query's
                place among the keys counts are refused.
        """
        for name in ("causal", "window", "diagonal", "alibi_slopes"):
            if not any(options.get(name) is nothing for nothing in (None, False)):
                raise Unsupported(f"{name} needs a query's place among all keys, of which a rank has some")
        own_sinks = sinks if self.rank == 0 else None
        with torch.no_grad():
            parts = attention_without_gradient(q, k, v, sinks=own_sinks, return_lse=True, **options)
            gathered = [x.new_empty(self.ranks, *x.shape) for x in parts]
            for all_parts, x in zip(gathered, parts):
                dist.all_gather_into_tensor(all_parts.flatten(0, 1), x.contiguous(), group=self.group)
            out, lse = merged(list(zip(*gathered)), layout=options.get("layout"))
        return (out, lse) if return_lse else out

    @contextlib.contextmanager
    def sdpa(self) -> Iterator[None]:
        """Within it, `torch.nn.functional.scaled_dot_product_attention` attends over all ranks; tensors are sharded along the length.

        Every rank has as many rows. A mask or dropout is refused.
        """
        before = torch.nn.functional.scaled_dot_product_attention

        def function(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
            refuse(dropout_p=(dropout_p, 0.0), attn_mask=(attn_mask, None))
            if key.shape[1] != query.shape[1] and not enable_gqa:
                raise InvalidInput("key has fewer heads than query; enable_gqa=True allows it")
            q, k, v = (x.transpose(1, 2) for x in (query, key, value))
            return self.attention(q, k, v, causal=is_causal, scale=scale).transpose(1, 2)

        torch.nn.functional.scaled_dot_product_attention = function
        try:
            yield
        finally:
            torch.nn.functional.scaled_dot_product_attention = before

    def _agree(self, call, refused):
        """Compares a call that this rank makes for the first time with those of the others, which would otherwise wait for each other.

        `refused` is this rank's reason not to make it.
        """
        group = self.group or dist.group.WORLD
        known = _AGREED.setdefault(group, set())
        key = tuple(call.items())
        others = [None] * self.ranks
        if key not in known:
            dist.all_gather_object(others, (call, refused), group=group)
        if refused:
            raise InvalidInput(refused)
        if key in known:
            return
        for rank, (other, _) in enumerate(others):
            for name, value in call.items():
                if other.get(name) != value:
                    raise InvalidInput(f"{name} is {value} on rank {self.rank}, but {other.get(name)} on rank {rank}")
        for rank, (_, why) in enumerate(others):
            if why:
                raise InvalidInput(f"rank {rank}: {why}")
        known.add(key)

    def _length(self, rows, length, cu_seqlens):
        if cu_seqlens is not None:
            last = int(cu_seqlens[-1])
            if length not in (None, last):
                raise InvalidInput(f"length is {length}, but cu_seqlens ends with {last}")
            return last
        return rows * self.ranks if length is None else length


def refuse(**arguments: tuple[Any, Any]) -> None:
    """Refuses arguments that are not the values that they may have."""
    for name, (given, only) in arguments.items():
        if given is not only and given != only:
            raise Unsupported(f"{name} is {given!r}; attention over several ranks takes {only!r} only")


# How rows are dealt out.


def _part(length, index, parts):
    return length * index // parts, length * (index + 1) // parts


def _offsets(length, cu_seqlens):
    """The first row of each document, and the row after the last one's last."""
    if cu_seqlens is None:
        return 0, length
    offsets = tuple(int(at) for at in (cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens))
    if not offsets or offsets[0] != 0 or list(offsets) != sorted(offsets) or offsets[-1] != length:
        raise InvalidInput(f"cu_seqlens must rise from 0 to the length {length}")
    return offsets


def _chunks(offsets, sharding, rank, ranks):
    """The chunks of a rank in the order of its rows: the number of the document, and the first row and the one after the last in it."""
    parts = (ranks, [rank]) if sharding == "contiguous" else (2 * ranks, [rank, 2 * ranks - 1 - rank])
    for document, (first, end) in enumerate(zip(offsets, offsets[1:])):
        for index in parts[1]:
            begin, stop = _part(end - first, index, parts[0])
            if begin < stop:
                yield document, begin, stop


def _rows(offsets, sharding, rank, ranks):
    chunks = _chunks(offsets, sharding, rank, ranks)
    rows = [torch.arange(offsets[document] + begin, offsets[document] + stop) for document, begin, stop in chunks]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)


# The calls of a rank.


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees, by its place in its document; the window ends at the query if the mask is causal."""

    causal: bool
    window: tuple[int, int]


@dataclass
class Call:
    """Some of a rank's rows, their keys among all rows, and the options of `warptile.attention` for them."""

    rows: slice | Tensor
    keys: slice
    options: dict[str, Any]


@dataclass
class Plan:
    """The calls of a rank, and where its rows are among those of all ranks."""

    calls: list[Call]
    counts: list[int]
    # For each row of all its place among the gathered ones; None where that is the same.
    order: Tensor | None
    packed: bool
    _on_devices: dict[torch.device, Plan] = field(default_factory=dict)

    def check(self, name: str, rows: int, rank: int) -> None:
        if rows != self.counts[rank]:
            raise InvalidInput(f"{name} has {rows} rows, but rank {rank} has {self.counts[rank]} of {sum(self.counts)}")

    def to(self, device: torch.device) -> Plan:
        """The plan with its lists on a device."""
        if device not in self._on_devices:

            def moved(x):
                return x.to(device) if isinstance(x, Tensor) else x

            calls = [Call(moved(one.rows), one.keys, {name: moved(x) for name, x in one.options.items()}) for one in self.calls]
            self._on_devices[device] = Plan(calls, self.counts, moved(self.order), self.packed)
        return self._on_devices[device]


def order_of(rows: list[Tensor]) -> Tensor | None:
    """Where each row is in the gathered tensor, in which every rank has as many places as the one with the most rows."""
    most = max(map(len, rows))
    order = torch.empty(sum(map(len, rows)), dtype=torch.int64)
    for rank, own in enumerate(rows):
        order[own] = torch.arange(len(own)) + rank * most
    return None if torch.equal(order, torch.arange(most * len(rows))) else order


@functools.lru_cache(maxsize=64)
def _plan(offsets, sharding, rank, ranks, mask, packed):
    rows = [_rows(offsets, sharding, one, ranks) for one in range(ranks)]
    chunks = list(_chunks(offsets, sharding, rank, ranks))
    calls = _packed_calls(offsets, chunks, mask) if packed else calls_of(offsets, chunks, mask, packed=False)
    return Plan(calls, [len(own) for own in rows], order_of(rows), packed)


def options_of(mask):
    """The options of `warptile.attention` for a mask."""
    left, right = mask.window
    options = {"causal": True} if mask.causal and left < 0 else {}
    return options if options or (left < 0 and right < 0) else {"window": (left, right)}


def calls_of(offsets, chunks, mask, packed):
    """A call for each chunk, with the keys of its document that its rows see."""
    left, right = mask.window
    calls, begin = [], 0
    for document, first, stop in chunks:
        length = offsets[document + 1] - offsets[document]
        # From a multiple of the blocks that kernels add up, as in one call.
        start = 0 if left < 0 else max(0, first - left) // 256 * 256
        end = length if right < 0 else min(length, stop + right)
        options = options_of(mask)
        if options:
            options["diagonal"] = first - start
        if packed:
            for name, rows in (("cu_seqlens_q", stop - first), ("cu_seqlens_k", end - start)):
                options[name] = torch.tensor([0, rows], dtype=torch.int32)
        keys = slice(offsets[document] + start, offsets[document] + end)
        calls.append(Call(slice(begin, begin + stop - first), keys, options))
        begin += stop - first
    return calls


def _packed_calls(offsets, chunks, mask):
    """A call for the first chunk of each document, one for the second, and so on; one for all if every row sees its whole document.

    In a call for several documents the diagonal ends at the last key of each. A window that does not end at the query needs another one for
    each chunk, and so a call.
    """
    (left, right), documents = mask.window, len(offsets) - 1
    if left < 0 and right < 0:
        turns = [[(document, begin, stop) for document, begin, stop in chunks]]
    elif right != 0:
        return calls_of(offsets, chunks, mask, packed=True)
    else:
        turns = [[], []]
        for at, chunk in enumerate(chunks):
            turns[at > 0 and chunks[at - 1][0] == chunk[0]].append(chunk)
    places, begin = {}, 0
    for document, first, stop in chunks:
        places[document, first] = torch.arange(begin, begin + stop - first)
        begin += stop - first
    calls = []
    for turn in filter(None, turns):
        queries, used = [0] * documents, [0] * documents
        for document, first, stop in turn:
            queries[document] += stop - first
            used[document] = offsets[document + 1] - offsets[document] if right < 0 else stop
        rows = torch.cat([places[document, first] for document, first, _ in turn])
        options = {
            **options_of(mask),
            "cu_seqlens_q": torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32),
            "cu_seqlens_k": torch.tensor(offsets, dtype=torch.int32),
            "seqused_k": torch.tensor(used, dtype=torch.int32),
        }
        whole = len(rows) == begin and len(turns) == 1
        calls.append(Call(slice(0, begin) if whole else rows, slice(0, offsets[-1]), options))
    return calls


# Communication.


def _gather(tensors, plan, group):
    """All rows of `[batch, rows, ...]` tensors, in their order."""
    most, ranks = max(plan.counts), len(plan.counts)
    gathered, works = [], []
    for x in tensors:
        if x.shape[1] < most:
            x = torch.cat([x, x.new_zeros(x.shape[0], most - x.shape[1], *x.shape[2:])], 1)
        out = x.new_empty(ranks * x.shape[0], *x.shape[1:])
        works.append(dist.all_gather_into_tensor(out, x.contiguous(), group=group, async_op=True))
        gathered.append(out)
    for work in works:
        work.wait()
    order = None if plan.order is None else plan.order.to(tensors[0].device)

    def in_order(out):
        batch = out.shape[0] // ranks
        rows = out.unflatten(0, (ranks, batch)).transpose(0, 1).flatten(1, 2)
        return rows if order is None else rows.index_select(1, order)

    return [in_order(out) for out in gathered]


def _give_back(gradient, plan, group, rank):
    """The sum, by rank, of all ranks' gradients of this rank's rows; `gradient` is this rank's of all rows, in float32."""
    most, ranks = max(plan.counts), len(plan.counts)
    batch, _, *rest = gradient.shape
    if plan.order is not None:
        places = gradient.new_zeros(batch, ranks * most, *rest)
        places[:, plan.order] = gradient
        gradient = places
    sent = gradient.unflatten(1, (ranks, most)).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    total = received[0]
    for part in received[1:]:
        total = total + part
    return total[:, : plan.counts[rank]]


def _take(x, at):
    return x[:, at] if isinstance(at, slice) else x.index_select(1, at)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, plan, group, options):
        ctx.plan, ctx.group, ctx.options = plan, group, options
        k_all, v_all = _gather([k, v], plan, group)
        batch, rows, heads, _ = q.shape
        out = q.new_empty(batch, rows, heads, v.shape[-1])
        lse = q.new_empty(batch, heads, rows, dtype=torch.float32)
        for call in plan.calls:
            tensors = _taken(call, plan, q, k_all, v_all)
            part, part_lse = attention_without_gradient(*tensors, return_lse=True, sinks=sinks, **options, **call.options)
            out[:, call.rows] = part
            lse[:, :, call.rows] = part_lse
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, _):
        return (*_Gradients.apply(row_contiguous(d_out), *ctx.saved_tensors, ctx.plan, ctx.group, ctx.options), None, None, None)


class _Gradients(torch.autograd.Function):
    """The gradients of `_Attend`. Theirs are refused, which autograd asks for where it is told to `create_graph`."""

    @staticmethod
    def forward(ctx, d_out, q, k, v, sinks, out, lse, plan, group, options):
        k_all, v_all = _gather([k, v], plan, group)
        dq = torch.zeros_like(q, dtype=torch.float32)
        dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (k_all, v_all))
        d_sinks = None if sinks is None else torch.zeros_like(sinks)
        for call in plan.calls:
            q_part, k_part, v_part = tensors = _taken(call, plan, q, k_all, v_all)
            d_out_part, out_part = (_squeezed(_take(x, call.rows), plan) for x in (d_out, out))
            lse_part = _squeezed(lse[:, :, call.rows], plan).contiguous()
            buffers = {
                name: torch.zeros_like(x, dtype=torch.float32, memory_format=torch.contiguous_format)
                for name, x in (("dq", q_part), ("dk", k_part), ("dv", v_part))
            }
            found = attention_backward(d_out_part, *tensors, out_part, lse_part, sinks=sinks, **buffers, **options, **call.options)
            dq[:, call.rows] = buffers["dq"]
            dk[:, call.keys] += buffers["dk"]
            dv[:, call.keys] += buffers["dv"]
            if sinks is not None:
                d_sinks += found[4]
        rank = dist.get_rank(group)
        dk, dv = (_give_back(x, plan, group, rank).to(k.dtype) for x in (dk, dv))
        return dq.to(q.dtype), dk, dv, d_sinks

    backward = staticmethod(refuse_second_derivatives)


def _squeezed(x, plan):
    return x.squeeze(0) if plan.packed else x


def _taken(call, plan, q, k_all, v_all):
    """A call's tensors, of packed rows without the batch."""
    return tuple(_squeezed(x, plan) for x in (_take(q, call.rows), k_all[:, call.keys], v_all[:, call.keys]))


def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, plan: Plan, group: Any, options: dict[str, Any], return_lse: bool) -> Any:
    """Attention by a plan; `[batch, rows, heads, head size]`, or of packed rows `[rows, heads, head size]`."""
    tensors = (x.unsqueeze(0) if plan.packed else x for x in (row_contiguous(q), k, v))
    out, lse = (_squeezed(x, plan) for x in _Attend.apply(*tensors, sinks, plan.to(q.device), group, options))
    return (out, lse) if return_lse else out
