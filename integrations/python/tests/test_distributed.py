"""Attention over the ranks of a process group, by gloo on the CPU, against torch in float64.

Skipped where torch is missing; `.ci/run python-torch` installs one.
"""

import os
import tempfile
import unittest
import weakref

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
    from torch.distributed.device_mesh import init_device_mesh
    from warptile import ring_flash_attn
    from warptile.distributed import ContextParallel
except ImportError:
    torch = None

import warptile


def draw(seed, *shape, dtype=None):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype or torch.float32)


def expected(q, k, v, causal=False, window=(-1, -1), softcap=None, sinks=None, offsets=None):
    """`[batch, rows, heads, head size]`, from the definition."""
    length, group = q.shape[1], q.shape[2] // k.shape[2]
    offsets = offsets or [0, length]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[3] ** 0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i, j = torch.arange(length)[:, None], torch.arange(length)
    document = torch.bucketize(torch.arange(length), torch.tensor(offsets[1:]), right=True)
    seen = document[:, None] == document
    left, right = window[0], 0 if causal else window[1]
    if left >= 0:
        seen = seen & (j >= i - left)
    if right >= 0:
        seen = seen & (j <= i + right)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        sink = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.einsum("bhij,bjhd->bihd", torch.cat([scores, sink], -1).softmax(-1)[..., :-1], v)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


class Ranks:
    """What every rank checks."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks

    def close(self, found, wanted, what):
        error = (found.double() - wanted.double()).abs().max().item() if found.numel() else 0.0
        scale = {torch.float32: 2e-5, torch.bfloat16: 4e-2}[found.dtype]
        if found.shape != wanted.shape or not error <= scale * max(1.0, wanted.abs().max().item() if wanted.numel() else 1.0):
            raise AssertionError(f"rank {self.rank} of {self.ranks}, {what}: {found.shape}, {wanted.shape}, {error}")

    def check(self, function, own, q, k, v, sinks=None, **options):
        """`function` of this rank's rows, whose numbers are `own`; outputs, gradients and their bits."""
        tensors = [q, k, v] + ([] if sinks is None else [sinks])
        whole = [x.double().requires_grad_() for x in tensors]
        meant = dict(options, sinks=whole[3]) if sinks is not None else options
        out = expected(*whole[:3], **meant)
        d_out = draw(7, *out.shape, dtype=q.dtype)
        gradients = torch.autograd.grad(out, whole, d_out.double())
        runs = []
        for _ in range(2):
            local = [x[:, own].detach().requires_grad_() for x in (q, k, v)]
            local += [] if sinks is None else [sinks.detach().requires_grad_()]
            found = function(*local)
            runs.append([found, *torch.autograd.grad(found, local, d_out[:, own])])
        for first, second in zip(*runs):
            assert torch.equal(first, second), "two runs differ"
        self.close(runs[0][0], out[:, own], f"out {options}")
        for name, found, wanted in zip(("dq", "dk", "dv"), runs[0][1:], gradients):
            self.close(found, wanted[:, own], f"{name} {options}")
        if sinks is not None:
            total = runs[0][4]
            dist.all_reduce(total)
            self.close(total, gradients[3], "d_sinks")

    def sequences(self):
        for sharding in ("zigzag", "contiguous"):
            cp = ContextParallel(sharding=sharding)
            for length in (75, 64, 1, 600):
                q, k, v = draw(1, 2, length, 4, 16), draw(2, 2, length, 2, 16), draw(3, 2, length, 2, 8)
                own = cp.rows(length)
                every = ({}, {"causal": True}, {"window": (5, 3)}, {"softcap": 3.0}, {"causal": True, "window": (300, -1)})
                # Only the last has parts whose keys begin elsewhere.
                for options in every if length < 100 else every[4:]:

                    def function(*local, options=options, length=length):
                        return cp.attention(*local, length=length, **options)

                    self.check(function, own, q, k, v, **options)
                assert torch.equal(cp.shard(q), q[:, own])
                assert torch.equal(cp.unshard(q[:, own], length), q)
            sinks = draw(4, 4)

            def function(q, k, v, sinks, cp=cp):
                return cp.attention(q, k, v, sinks=sinks, causal=True)

            tensors = (draw(1, 1, 96, 4, 16), draw(2, 1, 96, 2, 16), draw(3, 1, 96, 2, 16))
            self.check(function, cp.rows(96), *tensors, sinks=sinks, causal=True)
            half = [x.bfloat16() for x in tensors]
            self.check(lambda *local, cp=cp: cp.attention(*local, causal=True), cp.rows(96), *half, causal=True)

    def documents(self):
        offsets = [0, 70, 71, 71, 200, 333]
        q, k, v = draw(1, 1, 333, 4, 16), draw(2, 1, 333, 2, 16), draw(3, 1, 333, 2, 16)
        for sharding in ("zigzag", "contiguous"):
            cp = ContextParallel(sharding=sharding)
            own = cp.rows(333, offsets)
            for options in ({}, {"causal": True}, {"window": (20, 0)}, {"window": (20, -1)}, {"window": (-1, 3)}, {"window": (20, 3)}):

                def function(*local, options=options):
                    local = (x.squeeze(0) for x in local)
                    return cp.attention(*local, cu_seqlens=torch.tensor(offsets), **options).unsqueeze(0)

                self.check(function, own, q, k, v, offsets=offsets, **options)

    def names_of_ring_flash_attn(self):
        length = 48 * self.ranks
        q, k, v = draw(1, 2, length, 4, 16), draw(2, 2, length, 4, 16), draw(3, 2, length, 4, 16)
        for name, sharding in (("ring_flash_attn", "contiguous"), ("zigzag_ring_flash_attn", "zigzag")):
            own = ContextParallel(sharding=sharding).rows(length)
            of = {kind: getattr(ring_flash_attn, f"{name}_{kind}func") for kind in ("", "kvpacked_", "qkvpacked_", "varlen_")}
            functions = (
                lambda q, k, v: of[""](q, k, v, causal=True),
                lambda q, k, v: of["kvpacked_"](q, torch.stack([k, v], 2), causal=True),
                lambda q, k, v: of["qkvpacked_"](torch.stack([q, k, v], 2), 0.0, None, True),
                lambda q, k, v: of[""](q, k, v, causal=True, return_attn_probs=True)[0],
            )
            for function in functions:
                self.check(function, own, q, k, v, causal=True)
            offsets = [0, 4 * self.ranks, length]
            local_offsets = torch.tensor([at // self.ranks for at in offsets], dtype=torch.int32)
            own = ContextParallel(sharding=sharding).rows(length, offsets)

            def function(q, k, v):
                tensors = (x.squeeze(0) for x in (q, k, v))
                return of["varlen_"](*tensors, local_offsets, 44, causal=True).unsqueeze(0)

            self.check(function, own, q[:1], k[:1], v[:1], causal=True, offsets=offsets)
        for name in ring_flash_attn.__all__:
            assert getattr(ring_flash_attn, name).__name__ == name
        offsets = [0, 7, 30, 31, length]
        own = torch.arange(48 * self.rank, 48 * (self.rank + 1))
        # The lists of `causal=False` have all keys of the last document, whose queries may end before them.
        masks = [(True, (-1, -1)), (True, (20, -1)), *((False, window) for window in ((-1, -1), (20, -1), (-1, 3), (20, 3), (20, 0)))]
        for lists_causal, (causal, window) in [(False, mask) for mask in masks] + [(True, mask) for mask in (*masks[:2], masks[-1])]:
            arguments = ring_flash_attn.llama3_flash_attn_prepare_cu_seqlens(
                torch.tensor(offsets, dtype=torch.int32), lists_causal, self.rank, self.ranks
            )

            def function(q, k, v):
                tensors = (x.squeeze(0) for x in (q, k, v))
                *lists, keys = arguments
                options = {"causal": causal, "window_size": window}
                return packed(*tensors, *lists, 1, keys, **options).unsqueeze(0)

            for packed in (
                ring_flash_attn.llama3_flash_attn_varlen_func,
                lambda q, k, v, *rest, **options: ring_flash_attn.llama3_flash_attn_varlen_kvpacked_func(q, torch.stack([k, v], 1), *rest, **options),
                lambda q, k, v, *rest, **options: ring_flash_attn.llama3_flash_attn_varlen_qkvpacked_func(torch.stack([q, k, v], 1), *rest, **options),
            ):
                self.check(function, own, q[:1], k[:1], v[:1], causal=causal, window=window, offsets=offsets)

    def strides_and_second_derivatives(self):
        cp = ContextParallel(sharding="contiguous")
        x = [draw(at, 1, 16, 4, 24 * self.ranks).transpose(1, 3) for at in (1, 2, 3)]
        assert x[0].stride(-1) != 1
        own = cp.rows(24 * self.ranks)
        self.check(lambda *local: cp.attention(*local, causal=True), own, *x, causal=True)
        # A gradient with strides of 0.
        results = []
        for d_out in (torch.ones(1).expand(1, 24, 4, 16), torch.ones(1, 24, 4, 16)):
            local = [y[:, own].clone().requires_grad_() for y in x]
            results.append(torch.autograd.grad(cp.attention(*local), local, d_out))
        assert all(torch.equal(*pair) for pair in zip(*results))
        q, k, v = (y[:, own].detach().requires_grad_() for y in x)
        out = cp.attention(q, k, v).square()
        [gradient] = torch.autograd.grad(out.sum(), q, create_graph=True)
        try:
            (gradient.square().sum() + out.sum()).backward()
        except warptile.Unsupported as error:
            assert "second derivatives" in str(error)
        else:
            raise AssertionError("second derivatives are left out")

    def within_sdpa(self):
        cp = ContextParallel()
        length = 40 * self.ranks
        q, k, v = draw(1, 1, length, 4, 16), draw(2, 1, length, 4, 16), draw(3, 1, length, 4, 16)
        before = torch.nn.functional.scaled_dot_product_attention

        def function(*local):
            with cp.sdpa():
                local = (x.transpose(1, 2) for x in local)
                return torch.nn.functional.scaled_dot_product_attention(*local, is_causal=True).transpose(1, 2)

        self.check(function, cp.rows(length), q, k, v, causal=True)
        assert torch.nn.functional.scaled_dot_product_attention is before

    def decoding(self):
        cp = ContextParallel(init_device_mesh("cpu", (self.ranks,), mesh_dim_names=("cp",))["cp"])
        q, k, v, sinks = draw(1, 3, 1, 4, 16), draw(2, 3, 100, 2, 16), draw(3, 3, 100, 2, 16), draw(4, 4)
        # The last rank has none.
        own = slice(50 * self.rank, 50 * self.rank + 50)
        for given in (None, sinks):
            whole, whole_lse = warptile.attention(q, k, v, sinks=given, return_lse=True)
            out, lse = cp.decode(q, k[:, own], v[:, own], sinks=given, return_lse=True)
            self.close(out, whole, "decode")
            self.close(lse, whole_lse, "lse of decode")
            others = [None] * self.ranks
            dist.all_gather_object(others, out)
            assert all(torch.equal(out, other) for other in others)
        # As many rows as heads, heads before rows.
        heads_first = [x.transpose(1, 2).contiguous() for x in (draw(5, 3, 4, 4, 16), k, v)]
        out, lse = cp.decode(heads_first[0], *(x[:, :, own] for x in heads_first[1:]), layout="bhsd", return_lse=True)
        whole, whole_lse = warptile.attention(*heads_first, layout="bhsd", return_lse=True)
        self.close(out, whole, "decode, heads first")
        self.close(lse, whole_lse, "lse of decode, heads first")
        # Pages of 4 rows; each rank has every other one or every third.
        pages = [x.reshape(75, 4, 2, 16) for x in (k, v)]
        own = torch.arange(75).reshape(3, 25)[:, self.rank :: self.ranks].to(torch.int32)
        used = torch.full((3,), 4 * own.shape[1], dtype=torch.int32)
        found = cp.decode(q, *pages, block_table=own, seqused_k=used)
        self.close(found, warptile.attention(q, k, v), "decode from pages")

    def errors(self):
        cp = ContextParallel()
        q = draw(1, 1, 8, 2, 8)
        for wrong, words in (
            (lambda: cp.attention(q, q[:, :7], q), "k has 7 rows"),
            (lambda: cp.attention(q, q, q, length=8 * cp.ranks + 100), "q has 8 rows, but rank"),
            (lambda: cp.attention(q[0], q, q), "q has shape [8, 2, 8]; it needs [batch, rows, heads, head size]"),
            (lambda: ContextParallel(sharding="ring"), "sharding is 'ring'"),
            (lambda: cp.attention(q[0], q[0], q[0], cu_seqlens=[1, 8 * cp.ranks]), "cu_seqlens must rise from 0"),
            (lambda: ring_flash_attn.ring_flash_attn_func(q, q, q, dropout_p=0.1), "dropout_p is 0.1"),
            (lambda: ring_flash_attn.ring_flash_attn_kvpacked_func(q, torch.stack([q] * 3, 2)), "kv has shape [1, 8, 3, 2, 8]; it must be"),
            (lambda: cp.decode(q, q, q, causal=True), "causal needs a query's place"),
            (lambda: cp.decode(q, q, q, alibi_slopes=torch.ones(2)), "alibi_slopes needs a query's place"),
            # Otherwise the ranks would wait for each other.
            (lambda: cp.attention(*[q[:, : 8 - (cp.rank > 0)]] * 3), "length is "),
            (lambda: cp.attention(q, q, q, causal=cp.rank > 0), "causal is "),
            (lambda: cp.attention(q, q, q, scale=0.1, length=8 * cp.ranks + 100 * (cp.rank > 0)), ("length is ", "q has 8 rows, but rank")),
            (lambda: cp.attention(q, q[:, : 8 - (cp.rank > 0)], q, scale=0.2), ("rank 1: k has 7 rows", "k has 7 rows")),
            (lambda: cp.attention(q, q[0] if cp.rank > 0 else q, q, scale=0.3), ("shapes is ", "k has shape [8, 2, 8]")),
        ):
            words = words if isinstance(words, str) else words[cp.rank > 0]
            try:
                wrong()
            except (warptile.InvalidInput, warptile.Unsupported) as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"no error with {words!r}")


def run(rank, ranks, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    group = weakref.ref(dist.group.WORLD)
    try:
        checks = Ranks(rank, ranks)
        checks.sequences()
        checks.documents()
        checks.names_of_ring_flash_attn()
        checks.strides_and_second_derivatives()
        checks.within_sdpa()
        checks.decoding()
        checks.errors()
    finally:
        dist.destroy_process_group()
    # Threads of a group that is still referred to can abort the process at its end.
    assert group() is None, "something refers to the group"


@unittest.skipIf(torch is None, "torch is missing")
class Distributed(unittest.TestCase):
    def test_ranks(self):
        for ranks in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                multiprocessing.spawn(run, (ranks, os.path.join(folder, "rendezvous")), nprocs=ranks)


if __name__ == "__main__":
    unittest.main()
