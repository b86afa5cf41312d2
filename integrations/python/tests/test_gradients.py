"""Gradients on the CPU: of numpy arrays by finite differences, and of torch tensors by torch's own in float64.

The second part is skipped where torch is missing; `.ci/run python-torch` installs one.
"""

import functools
import types
import unittest
import unittest.mock

import numpy as np
import reference
import warptile
from reference import draw

try:
    import torch
    import torch.utils.checkpoint
    import warptile.torch
except ImportError:
    torch = None

from warptile.flash_attn import (
    flash_attn_combine,
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)


def slope(function, arrays, directions):
    """The derivative of a number along directions, in float64."""
    step = 1e-5
    ahead, behind = ([x + sign * step * d for x, d in zip(arrays, directions)] for sign in (1, -1))
    return (function(*ahead) - function(*behind)) / (2 * step)


class Raw(unittest.TestCase):
    def check(self, tensors, bias=None, sinks=None, **options):
        """The derivative along random directions, one of the arguments at a time, of a weighted sum of output and lse."""
        more = {name: array for name, array in (("bias", bias), ("sinks", sinks)) if array is not None}
        learned, given = [*tensors, *more.values()], {**options, **more}
        out, lse = warptile.attention(*tensors, return_lse=True, **given)
        d_out, d_lse = draw(3, out.shape, lse.shape)

        def total(*learned):
            meant = {name.replace("key_mask", "mask"): option for name, option in options.items()}
            if "dropout_p" in meant:
                (q, k), drop = learned[:2], (meant.pop("dropout_p"), meant.pop("dropout_state"))
                meant["dropout"] = reference.dropout(*drop, q.shape[0], q.shape[2], q.shape[1], k.shape[1])
            meant |= zip(more, learned[3:])
            out, lse = reference.attention(*learned[:3], **meant)
            return (out * d_out).sum() + np.where(np.isinf(lse), 0, lse * d_lse).sum()

        needs = (True, True, True, bias is not None, sinks is not None)
        found = warptile.attention_backward(d_out, *tensors, out, lse, d_lse=d_lse, needs=needs, **given)
        self.assertEqual([gradient is not None for gradient in found], list(needs))
        by_default = warptile.attention_backward(d_out, *tensors, out, lse, d_lse=d_lse, **given)
        self.assertIs(by_default[3], None)
        for at, (array, gradient) in enumerate(zip(learned, (gradient for gradient in found if gradient is not None))):
            self.assertEqual((gradient.shape, gradient.dtype), (array.shape, array.dtype))
            for seed in range(3):
                directions = [np.zeros(x.shape) for x in learned]
                directions[at] = np.random.default_rng(seed).standard_normal(array.shape)
                expected = slope(total, [x.astype(np.float64) for x in learned], directions)
                bound = np.sqrt((gradient.astype(np.float64) ** 2).sum())
                self.assertLess(abs((gradient * directions[at]).sum() - expected), 1e-5 * bound + 1e-5, (at, list(options)))

    def test_options(self):
        tensors = draw(1, (2, 9, 4, 16), (2, 17, 2, 16), (2, 17, 2, 24))
        mask = np.random.default_rng(2).random((2, 1, 9, 17)) < 0.7
        [bias] = draw(4, (4, 9, 17))
        for options in (
            {},
            {"causal": True, "scale": 0.3},
            {"causal": True, "diagonal": "top-left", "softcap": 2.0},
            {"window": (3, 1)},
            {"key_mask": mask},
            {"bias": bias, "sinks": np.array([0.5, -1, 2, 0], np.float32)},
        ):
            with self.subTest(list(options)):
                self.check(tensors, **options)

    def test_rows_without_keys(self):
        """Queries before the first key see none."""
        self.check(draw(1, (1, 9, 2, 16), (1, 4, 2, 16), (1, 4, 2, 16)), causal=True)

    def test_packed(self):
        q, k, v, d = draw(1, (12, 4, 16), (14, 2, 16), (14, 2, 16), (12, 4, 16))
        # The last two rows belong to no sequence.
        options = {"cu_seqlens_q": [0, 3, 10], "cu_seqlens_k": [0, 5, 12], "causal": True}
        out, lse = warptile.attention(q, k, v, return_lse=True, **options)
        found = warptile.attention_backward(d, q, k, v, out, lse, **options)
        for (a, b), (c, e) in (((0, 3), (0, 5)), ((3, 10), (5, 12))):
            one = [q[None, a:b], k[None, c:e], v[None, c:e]]
            out1, lse1 = warptile.attention(*one, return_lse=True, causal=True)
            expected = warptile.attention_backward(d[None, a:b], *one, out1, lse1, causal=True)
            for gradient, other, (start, end) in zip(found, expected, ((a, b), (c, e), (c, e))):
                np.testing.assert_array_equal(gradient[start:end], other[0])
        self.assertFalse(found[0][10:].any() or found[1][12:].any() or found[2][12:].any())

    def test_layout_and_halves(self):
        q, k, d = (x.astype(np.float16) for x in draw(1, (2, 9, 4, 16), (2, 17, 2, 16), (2, 9, 4, 16)))
        out, lse = warptile.attention(q, k, k, return_lse=True)
        expected = warptile.attention_backward(d, q, k, k, out, lse)
        self.assertEqual(expected[0].dtype, np.float16)
        swapped = [x.transpose(0, 2, 1, 3) for x in (d, q, k, k, out)]
        found = warptile.attention_backward(*swapped, lse, layout="bhsd")
        for one, other in zip(found[:3], expected):
            np.testing.assert_array_equal(one.transpose(0, 2, 1, 3), other)
        exact = np.zeros(q.shape, np.float32)
        only = warptile.attention_backward(d, q, k, k, out, lse, needs=(True, False, False, False, False), dq=exact)
        self.assertIs(only[0], exact)
        self.assertEqual(only[1:], (None,) * 4)
        np.testing.assert_array_equal(exact.astype(np.float16), expected[0])

    def test_errors(self):
        q, k = draw(1, (2, 9, 4, 16), (2, 17, 2, 16))
        sinks = np.zeros(4, np.float32)
        out, lse = warptile.attention(q, k, k, sinks=sinks, return_lse=True)
        cases = [
            (warptile.InvalidInput, "d_out has", {"d_out": q[:, :8]}),
            (warptile.InvalidType, "d_out has elements of type float16, but must have float32", {"d_out": q.astype(np.float16)}),
            (warptile.InvalidInput, "stream is given", {"stream": 0}),
            (warptile.InvalidType, "needs must be 5 truth values", {"needs": (1, 2)}),
            (warptile.InvalidInput, "dq is given, but needs says", {"dq": q.copy(), "needs": (False, True, True, False, True)}),
            (warptile.InvalidInput, "dq has length 17, but q has 9", {"dq": np.zeros((2, 17, 4, 16), np.float32)}),
            (warptile.InvalidType, "dq has elements of type float16", {"dq": q.astype(np.float16)}),
            (warptile.InvalidInput, "d_lse has shape", {"d_lse": lse[:, :2]}),
            (warptile.InvalidInput, "lse has shape", {"lse": lse[:, :2]}),
            (warptile.InvalidInput, "d_sinks has shape", {"d_sinks": sinks[:3].copy()}),
            (warptile.InvalidType, "d_sinks is of type list", {"d_sinks": [0.0] * 4}),
            (warptile.InvalidInput, "d_bias .*no bias", {"needs": (True,) * 5}),
            (warptile.InvalidInput, "d_sinks .*no sinks", {"sinks": None, "needs": (True, True, True, False, True)}),
            (warptile.InvalidInput, "kernel is", {"kernel": "dkv"}),
            (TypeError, "unexpected keyword argument 'delta'", {"delta": lse}),
            (warptile.InvalidInput, "shares memory|overlaps", {"dq": q}),
        ]
        for error, text, options in cases:
            with self.subTest(text), self.assertRaisesRegex(error, text):
                given = {"d_out": q, "q": q, "k": k, "v": k, "out": out, "lse": lse, "sinks": sinks, **options}
                warptile.attention_backward(**given)


def naive(q, k, v, *, causal=False, top_left=False, window=(None, None), scale=None, softcap=0.0, slopes=None, sinks=None, bias=None, mask=None, dropout=None):
    """Dense attention `[batch, length, heads, head size]` by operations of torch; `dropout` is what weights are multiplied with."""
    queries, keys, heads = q.shape[1], k.shape[1], q.shape[2]
    k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    diagonal = torch.arange(queries)[:, None] + (0 if top_left else keys - queries)
    at = torch.arange(keys)[None, :]
    if slopes is not None:
        scores = scores - slopes.reshape(-1, heads, 1, 1).to(scores) * (diagonal - at).abs()
    if bias is not None:
        scores = scores + bias
    left, right = window
    right = 0 if causal else right
    seen = torch.ones(queries, keys, dtype=torch.bool)
    seen &= at >= diagonal - left if left is not None else True
    seen &= at <= diagonal + right if right is not None else True
    scores = scores.masked_fill(~(seen if mask is None else seen & mask), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], 3)
    lse = scores.logsumexp(3)
    weights = scores.softmax(3)[..., :keys] * (1 if dropout is None else dropout)
    return torch.einsum("bhij,bjhd->bihd", weights, v), lse


@unittest.skipUnless(torch is not None and hasattr(torch, "library"), "torch is not installed")
class Autograd(unittest.TestCase):
    def setUp(self):
        generator = torch.Generator().manual_seed(1)
        self.draw = lambda *shape: torch.randn(shape, generator=generator)

    def check(self, function, expected, *tensors, share=2e-5):
        """Results and gradients of all tensors. Both functions give one or several tensors."""
        found, meant = [], []
        for of, dtype, to in ((function, None, found), (expected, torch.float64, meant)):
            learned = [x.detach().to(dtype or x.dtype).requires_grad_() for x in tensors]
            results = of(*learned)
            results = results if isinstance(results, (tuple, list)) else [results]
            generator = torch.Generator().manual_seed(2)
            weights = [torch.randn(x.shape, generator=generator).to(x) for x in results]
            to += [*results, *torch.autograd.grad(results, learned, weights)]
        for one, other in zip(found, meant, strict=True):
            self.assertEqual(one.shape, other.shape)
            difference = (one.double() - other).abs().max().item()
            self.assertLessEqual(difference, share * max(other.abs().max().item(), 1e-3))

    def test_flash_attn(self):
        q, k, v = self.draw(2, 9, 4, 16), self.draw(2, 17, 2, 16), self.draw(2, 17, 2, 16)
        slopes = torch.tensor([0.5, 0.25, 0.1, 0.2])
        for given, meant in (
            ({}, {}),
            ({"causal": True, "softmax_scale": 0.3, "deterministic": True}, {"causal": True, "scale": 0.3}),
            ({"window_size": (3, 2)}, {"window": (3, 2)}),
            ({"softcap": 2.0, "alibi_slopes": slopes}, {"softcap": 2.0, "slopes": slopes}),
        ):
            with self.subTest(list(given)):
                self.check(lambda *x: flash_attn_func(*x, **given), lambda *x: naive(*x, **meant)[0], q, k, v)
        self.check(lambda *x: flash_attn_func(*x, return_attn_probs=True)[:2], naive, q, k, v)
        # Heads of another size, strides other than dense, and gradients that are expanded.
        self.check(lambda *x: flash_attn_func(*x)[..., :12], lambda *x: naive(*x)[0], *(self.draw(2, 9, 4, 12) for _ in range(3)))
        self.check(lambda *x: flash_attn_func(*(y.mT for y in x)).sum(), lambda *x: naive(*(y.mT for y in x))[0].sum(), *(self.draw(2, 5, 16, 4) for _ in range(3)))

    def test_flash_attn_without_a_gradient(self):
        """As flash_attn, it copies tensors whose last dimension is not contiguous, and functions on caches make no graph."""
        q, k, v = (self.draw(1, 4, 64, 10).permute(0, 3, 1, 2) for _ in range(3))
        self.assertNotEqual(q.stride(-1), 1)
        dense = [x.contiguous() for x in (q, k, v)]
        expected = flash_attn_func(*dense, causal=True)
        self.assertTrue(torch.equal(flash_attn_func(q, k, v, causal=True), expected))
        self.assertTrue(torch.equal(torch.compile(lambda *x: flash_attn_func(*x, causal=True), fullgraph=True, backend="aot_eager")(q, k, v), expected))
        at = torch.tensor([0, 10], dtype=torch.int32)
        self.assertTrue(torch.equal(flash_attn_varlen_func(q[0], k[0], v[0], at, at, 10, 10, causal=True), expected[0]))
        pages, table = [x.reshape(5, 2, 4, 64) for x in dense[1:]], torch.arange(10, dtype=torch.int32).reshape(5, 2).mT[:1]
        angles = torch.ones(10, 16)
        rotation = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "causal": True}
        found = []
        for new in ([q, k, v], dense, [x.clone().requires_grad_() for x in dense]):
            learned = new[0].requires_grad
            caches = [torch.zeros(1, 10, 4, 64, requires_grad=learned) for _ in range(2)]
            options = {"alibi_slopes": torch.ones(4, requires_grad=learned)}
            found.append([])
            for more in ({}, {"return_softmax_lse": True}):
                found[-1] += flash_attn_with_kvcache(new[0], *dense[1:], causal=True, **options, **more)
                found[-1] += flash_attn_with_kvcache(new[0], *caches, *new[1:], cache_seqlens=0, **rotation, **options, **more)
            found[-1] += caches
            found[-1].append(flash_attn_with_kvcache(new[0], *pages, block_table=table, cache_seqlens=4))
            parts = torch.stack([new[0], new[1]]).contiguous(), torch.zeros(2, 1, 10, 4, requires_grad=learned)
            found[-1] += flash_attn_combine(*parts)
            found[-1] += flash_attn_combine(*parts, out=torch.empty_like(dense[0]).requires_grad_(learned))
        for one, *others in zip(*found, strict=True):
            self.assertTrue(all(torch.equal(one, other) and (other.grad_fn is None) for other in others))
        with self.assertRaisesRegex(warptile.InvalidInput, "k_cache has stride 10 in its last dimension"):
            flash_attn_with_kvcache(q, k, v)

    def test_expanded_slopes(self):
        q, [slopes] = self.draw(3, 9, 4, 16), self.draw(1, 4)
        for function in (flash_attn_func, warptile.attention):
            expected = function(q, q, q, alibi_slopes=slopes)
            for of in (slopes.expand(3, 4), slopes[None].expand(3, 4).numpy()):
                self.assertTrue(torch.equal(function(q, q, q, alibi_slopes=of), expected))
                learned = q.clone().requires_grad_()
                function(learned, q, q, alibi_slopes=of).sum().backward()
                self.assertTrue(learned.grad.any())
            for text, wrong in (
                (r"alibi_slopes has shape \[2, 4\]; it must be \[heads\] or \[batch, heads\], for 4 heads and batch 3", slopes.expand(2, 4)),
                ("alibi_slopes is not contiguous", self.draw(4, 3).mT),
            ):
                with self.assertRaisesRegex(warptile.InvalidInput, text):
                    function(q, q, q, alibi_slopes=wrong)

    def test_flash_attn_of_halves(self):
        tensors = [self.draw(2, 9, 4, 16).bfloat16() for _ in range(3)]
        self.check(lambda *x: flash_attn_func(*x, causal=True), lambda *x: naive(*x, causal=True)[0], *tensors, share=2e-2)

    def test_tensors_in_one(self):
        qkv, q, kv = self.draw(2, 9, 3, 4, 16), self.draw(2, 9, 4, 16), self.draw(2, 17, 2, 2, 16)
        self.check(flash_attn_qkvpacked_func, lambda x: naive(*x.unbind(2))[0], qkv)
        self.check(flash_attn_kvpacked_func, lambda q, kv: naive(q, *kv.unbind(2))[0], q, kv)

    def test_packed_sequences(self):
        at, lengths = torch.tensor([0, 3, 20], dtype=torch.int32), ((0, 3), (3, 20))

        def each(q, k, v):
            return torch.cat([naive(*(x[None, a:b] for x in (q, k, v)), causal=True)[0][0] for a, b in lengths])

        q, k, v = self.draw(20, 4, 16), self.draw(20, 2, 16), self.draw(20, 2, 16)
        self.check(lambda *x: flash_attn_varlen_func(*x, at, at, 17, 17, causal=True), each, q, k, v)
        self.check(lambda *x: flash_attn_varlen_func(*x, [0, 3, 20], [0, 3, 20], 17, 17, causal=True), each, q, k, v)
        kv, qkv = self.draw(20, 2, 2, 16), self.draw(20, 3, 4, 16)
        self.check(lambda q, kv: flash_attn_varlen_kvpacked_func(q, kv, at, at, 17, 17, causal=True), lambda q, kv: each(q, *kv.unbind(1)), q, kv)
        self.check(lambda x: flash_attn_varlen_qkvpacked_func(x, at, 17, causal=True), lambda x: each(*x.unbind(1)), qkv)
        # Rows of no sequence have a gradient of 0.
        learned = q.clone().requires_grad_()
        flash_attn_varlen_func(learned, k, v, at[:2], at[:2], 3, 3).sum().backward()
        self.assertTrue(learned.grad[:3].any() and not learned.grad[3:].any())

    def test_attention(self):
        q, k, v, sinks = self.draw(2, 9, 4, 16), self.draw(2, 17, 2, 16), self.draw(2, 17, 2, 24), self.draw(4)
        bias, mask = self.draw(4, 9, 17), self.draw(2, 1, 9, 17) > -1
        self.check(
            lambda q, k, v, b, s: warptile.attention(q, k, v, sinks=s, bias=b, causal=True, return_lse=True),
            lambda q, k, v, b, s: naive(q, k, v, sinks=s, bias=b, causal=True),
            *(q, k, v, bias, sinks),
        )
        # A bias that is repeated, by its shape or by a stride of 0, and one alone.
        for shape in ((9, 17), (2, 1, 1, 17), (4, 9, 1), (2, 1, 9, 17), ()):
            repeated = lambda b: b.expand(2, 4, 9, 17)
            for of in (lambda b: b, repeated) if shape else (repeated,):
                self.check(
                    lambda q, k, b: warptile.attention(q, k, v, bias=of(b), sinks=sinks),
                    lambda q, k, b: naive(q, k, v.double(), bias=repeated(b), sinks=sinks.double())[0],
                    *(q, k, self.draw(*shape)),
                    share=1e-4,  # sums whose terms cancel
                )
        self.check(lambda b: warptile.attention(q, k, v, bias=b), lambda b: naive(*(x.double() for x in (q, k, v)), bias=b)[0], bias)
        self.check(lambda *x: warptile.attention(*x, key_mask=mask), lambda *x: naive(*x, mask=mask)[0], q, k, v)
        # Only the log-sum-exp is used, and then only the output.
        self.check(lambda q, k: warptile.attention(q, k, v, return_lse=True)[1], lambda q, k: naive(q, k, v.double())[1], q, k)
        # Tensors that need no gradient get none.
        for wanted in range(3):
            tensors = [x.clone().requires_grad_(at == wanted) for at, x in enumerate((q, k, v))]
            warptile.attention(*tensors).sum().backward()
            self.assertEqual([x.grad is not None for x in tensors], [at == wanted for at in range(3)])
        swapped = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        # Queries behind the used ones are in no sequence.
        learned = q.clone().requires_grad_()
        out, lse = warptile.attention(learned, k, v, seqused_q=[4, 9], seqused_k=[17, 11], return_lse=True)
        self.assertTrue(out[0, :4].all() and not out[0, 4:].any() and not lse[0, :, 4:].any())
        out.square().sum().backward()
        self.assertTrue(learned.grad[0, :4].any() and not learned.grad[0, 4:].any())
        self.check(
            lambda *x: warptile.attention(*x, layout="bhsd"), lambda *x: naive(*(y.transpose(1, 2) for y in x))[0].transpose(1, 2), *swapped
        )

    def test_arrays_of_numpy(self):
        """Beside tensors that require gradients, as beside others."""
        q, k, v = self.draw(2, 9, 4, 16), self.draw(2, 17, 2, 16), self.draw(2, 17, 2, 24)
        rows = self.draw(20, 4, 16)
        state = np.array([1, 2, 0, 0], np.uint64).view(np.int32)
        for tensors, options in (
            ((q, k, v), {"dropout_p": 0.1, "dropout_state": state}),
            ((q, k, v), {"dropout_p": 0.1, "dropout_state": state.tolist()}),
            ((q, k, v), {"sinks": np.arange(4, dtype=np.float32)}),
            ((q, k, v), {"key_mask": np.arange(34).reshape(2, 17) % 3 > 0}),
            ((q, k, v), {"bias": np.ones((9, 17), np.float32)}),
            ((q, k, v), {"seqused_k": np.array([5, 17]), "seqused_q": np.array([9, 4], np.int32)}),
            ((q, k, v), {"alibi_slopes": [0.5, 0.25, 0.1, 0.2]}),
            ((rows, rows, rows), {"cu_seqlens_q": np.array([0, 3, 20]), "cu_seqlens_k": [0, 3, 20]}),
        ):
            with self.subTest(list(options)):
                expected = warptile.attention(*tensors, **options)
                found = warptile.attention(tensors[0].clone().requires_grad_(), *tensors[1:], **options)
                self.assertTrue(torch.equal(found, expected))
                found.sum().backward()

    def test_arrays_may_change_before_gradients(self):
        q, k, v = self.draw(2, 9, 4, 16), self.draw(2, 17, 4, 16), self.draw(2, 17, 4, 16)
        gradients = []
        for change in (0, 4):
            learned = q.clone().requires_grad_()
            state = np.array([1, 2, 0, 0], np.uint64).view(np.int32)
            out = warptile.attention(learned, k, v, dropout_p=0.5, dropout_state=state)
            state[4] += change
            out.sum().backward()
            gradients.append(learned.grad)
        self.assertTrue(torch.equal(*gradients))

    def test_scaled_dot_product_attention(self):

        own, torchs = warptile.torch.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention
        q, k, v = self.draw(2, 4, 9, 16), self.draw(2, 4, 17, 16), self.draw(2, 4, 17, 16)
        bias, mask = self.draw(9, 17), self.draw(2, 1, 9, 17) > -1
        for options in ({}, {"is_causal": True, "scale": 0.3}, {"attn_mask": mask}, {"attn_mask": bias}):
            exact = {name: option.double() if option is bias else option for name, option in options.items()}
            self.check(lambda *x: own(*x, **options), lambda *x: torchs(*x, **exact), q, k, v)
        for learned in (bias, self.draw(4, 9, 17), self.draw(2, 1, 1, 17)):
            self.check(own, torchs, q, k, v, learned)
        grouped = [q, k[:, :2], v[:, :2]]
        self.check(lambda *x: own(*x, enable_gqa=True), lambda *x: torchs(*x, enable_gqa=True), *grouped)
        learned = q.clone().requires_grad_()
        for mask in (None, bias.clone().requires_grad_()):
            out = own(learned, k, v, mask)  # torch 2.11 forgets the name with the tensor.
            self.assertIn("warptile", out.grad_fn.name())

    def test_forward_mode_is_refused_or_left_to_torch(self):
        x, tangent = self.draw(2, 4, 9, 16), self.draw(2, 4, 9, 16)
        own = warptile.torch.scaled_dot_product_attention
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, tangent)
            cache = torch.zeros_like(x)
            for name, function in (
                ("q", lambda: warptile.attention(dual, x, x)),
                ("v", lambda: warptile.attention(x, x, dual)),
                ("bias", lambda: warptile.attention(x, x, x, bias=dual[:, :1, :4, :4])),
                ("q", lambda: torch.ops.warptile.attention(dual, x, x, False)),
                ("k", lambda: flash_attn_func(x, dual, x)),
                ("k", lambda: flash_attn_with_kvcache(x[:1], cache[:1], cache[1:], dual[:1], x[:1], cache_seqlens=0)),
                (r"parts\[\].out", lambda: warptile.merge([(dual, torch.zeros(2, 9, 4))])),
                ("d_out", lambda: warptile.attention_backward(dual, x, x, x, x, torch.zeros(2, 9, 4))),
            ):
                with self.subTest(name), self.assertRaisesRegex(warptile.Unsupported, f"^{name} has a tangent"):
                    function()
            self.assertTrue(torch.equal(warptile.attention(x, x, x), warptile.attention(x, x, x)))
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                for at in range(3):
                    tensors = [dual if of == at else x for of in range(3)]
                    found, expected = (torch.autograd.forward_ad.unpack_dual(of(*tensors)).tangent for of in (own, torch.nn.functional.scaled_dot_product_attention))
                    self.assertTrue(torch.equal(found, expected))

    def test_what_is_not_computed_is_left_to_torch(self):
        own, torchs = warptile.torch.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention
        x = self.draw(3, 2, 4, 9, 16)
        on_meta = x[0].to("meta")
        self.assertEqual(own(on_meta, on_meta, on_meta).shape, on_meta.shape)
        self.assertEqual(warptile.torch.transformers_attention(None, on_meta, on_meta, on_meta, None)[0].shape, (2, 9, 4, 16))
        # Torch 2.4 does not know the argument.
        with unittest.mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", side_effect=torchs) as asked:
            warptile.torch.transformers_attention(None, on_meta, on_meta, on_meta, None)
            self.assertNotIn("enable_gqa", asked.call_args.kwargs)
        nested = torch.nested.nested_tensor([x[0, 0], x[0, 1, :, :5]])
        for found, expected in zip(own(nested, nested, nested).unbind(), torchs(nested, nested, nested).unbind(), strict=True):
            self.assertTrue(torch.equal(found, expected))
        for learned in (x, x.clone().requires_grad_()):
            self.assertTrue(torch.equal(torch.vmap(own)(learned, x, x), torch.vmap(torchs)(learned, x, x)))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            for transform in (torch.func.grad, torch.func.hessian):
                found, expected = (transform(lambda y: of(y, x[1], x[2]).sum())(x[0]) for of in (own, torchs))
                self.assertTrue(torch.equal(found, expected))

    def test_without_a_gradient(self):
        import warptile.torch as wt

        def kernel(*_, **__):
            raise AssertionError("torch computes it")

        flash = wt._flash_of_sdpa(types.SimpleNamespace(call_boxed=kernel))
        q, k, v = self.draw(2, 4, 9, 16), self.draw(2, 4, 9, 16), self.draw(2, 4, 9, 16)
        packed = self.draw(2, 9, 3, 4, 16).permute(2, 0, 3, 1, 4)
        strided = [x.mT.contiguous().mT for x in (q, k, v)]
        long = [q, self.draw(2, 4, 17, 16), self.draw(2, 4, 17, 16)]
        halves, grouped = [x.half() for x in (q, k, v)], [q, k[:, :2], v[:, :2]]
        for tensors in ([q, k, v], halves, grouped, packed.unbind(), strided, long, [q[:, :, :1], k, v]):
            for options in ({}, {"is_causal": True}, {"scale": 0.3}):
                with self.subTest(shape=tensors[1].shape, stride=tensors[0].stride(), **options):
                    expected = torch.nn.functional.scaled_dot_product_attention(*tensors, **options, enable_gqa=True)
                    found = [wt.scaled_dot_product_attention(*tensors, **options, enable_gqa=True)]
                    if not options.get("is_causal") or tensors[0].shape[2] == tensors[1].shape[2]:
                        out, lse, *_, debug = flash(None, *tensors, 0.0, options.get("is_causal", False), scale=options.get("scale"))
                        self.assertEqual((lse.shape, lse.dtype, debug.shape), (tensors[0].shape[:3], torch.float32, (0,)))
                        self.assertEqual(debug.dtype, out.dtype)
                        found.append(out)
                    for out in found:
                        torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3 if out.dtype == torch.half else 1e-5)
                        self.assertEqual((out.dtype, out.stride()), (tensors[0].dtype, wt._output_like(tensors[0]).stride()))
        for wrong in ([q, k[:, :3], v[:, :3]], [q, k, v[..., :8]], [q[..., :12], k[..., :12], v[..., :12]], [q, k.double(), v]):
            with self.assertRaises(AssertionError):
                flash(None, *wrong)
        with self.assertRaises(AssertionError):
            flash(None, q, k, v, 1.0)

    def test_what_has_no_kernel_is_left_to_torch(self):
        import warptile.torch as wt

        def refuse(*_, **__):
            raise warptile.NoKernel("no kernels for this GPU")

        q, k, v, mask = self.draw(2, 4, 9, 16), self.draw(2, 2, 9, 16), self.draw(2, 2, 9, 16), self.draw(9, 9)
        own, torchs = (functools.partial(of, enable_gqa=True) for of in (wt.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention))
        with unittest.mock.patch.multiple(wt, attention_of_torch=refuse, attention_without_gradient=refuse):
            self.assertTrue(torch.equal(own(q, k, v, is_causal=True), torchs(q, k, v, is_causal=True)))
            self.assertTrue(torch.equal(own(q, k, v, mask), torchs(q, k, v, mask)))
            self.check(own, torchs, q, k, v, mask)
        # A GPU that warptile cannot use.
        on_gpu = types.SimpleNamespace(is_cuda=True, device=torch.device("cuda", 7), dtype=torch.half)
        for answer in (lambda *_: False, unittest.mock.Mock(side_effect=warptile.DeviceError)):
            wt._planned_kernels.cache_clear()
            with unittest.mock.patch.object(wt, "has_kernels", answer):
                self.assertFalse(wt._device_has_kernels(on_gpu))
        wt._planned_kernels.cache_clear()

    def test_windows_of_torchs_operator(self):
        """A right side of as many keys as there are is no limit, as in torch's own kernels."""
        import warptile.torch as wt

        flash, gradients = (of(None) for of in (wt._flash_of_rows, wt._gradients_of_rows))
        q, k, v, d = (self.draw(2, rows, 4, 16).half() for rows in (9, 4, 4, 9))
        at = [torch.arange(3, dtype=torch.int32) * rows for rows in (9, 4)]
        for tensors, offsets in (((q, k, v, d), (None, None)), ([x.flatten(0, 1) for x in (q, k, v, d)], at)):
            found = []
            for sides in ((-1, -1), (-1, 4), (-1, 3)):
                window = dict(zip(("window_size_left", "window_size_right"), sides))
                out, lse, *random, _ = flash(None, *tensors[:3], *offsets, 9, 4, 0.0, False, False, **window)
                # On the CPU there is no capability to ask for: torch is asked for the same bits each time.
                with unittest.mock.patch.object(torch, "are_deterministic_algorithms_enabled", return_value=True):
                    found.append([out, *gradients(None, tensors[3], *tensors[:3], out, lse, *offsets, 9, 4, 0.0, False, *random, **window)])
            self.assertTrue(all(torch.equal(one, other) for one, other in zip(found[0], found[1])))
            self.assertFalse(torch.equal(found[0][0], found[2][0]))

    def test_transformers(self):

        q, k, v, sinks = self.draw(2, 4, 9, 16), self.draw(2, 2, 9, 16), self.draw(2, 2, 9, 16), self.draw(4)
        self.check(
            lambda q, k, v, s: warptile.torch.transformers_attention(None, q, k, v, None, is_causal=True, softcap=3.0, s_aux=s)[0],
            lambda q, k, v, s: naive(*(x.transpose(1, 2) for x in (q, k, v)), causal=True, softcap=3.0, sinks=s)[0],
            *(q, k, v, sinks),
        )

    def test_refused(self):
        q = self.draw(2, 9, 4, 16).requires_grad_()
        slopes = torch.ones(4, requires_grad=True)
        half, bias = q.detach().half().requires_grad_(), self.draw(9, 9)
        wide, pages = self.draw(1, 2, 1, 264).requires_grad_(), torch.zeros(2, 1, dtype=torch.int32)
        cases = [
            ("no gradient of alibi_slopes", lambda: warptile.attention(q, q, q, alibi_slopes=slopes)),
            ("head size 264; the largest with one is 256", lambda: warptile.attention(wide, wide, wide)),
            ("a bias in torch.float32 with queries in torch.float16", lambda: warptile.attention(half, half, half, bias=bias)),
            ("a bias in torch.float32 with queries in torch.float16", lambda: warptile.attention(half, half, half, bias=bias.requires_grad_())),
            ("pages", lambda: warptile.attention(q, q.detach(), q.detach(), block_table=pages, seqused_k=torch.tensor([3, 4], dtype=torch.int32))),
        ]
        for text, call in cases:
            with self.subTest(text):
                out = call()
                with self.assertRaisesRegex(warptile.Unsupported, text):
                    out.sum().backward()
        with self.assertRaisesRegex(warptile.Unsupported, "out is not supported"):
            warptile.attention(q, q, q, out=torch.empty_like(q))
        [gradient] = torch.autograd.grad(warptile.attention(q, q, q).square().sum(), q, create_graph=True)
        with self.assertRaisesRegex(warptile.Unsupported, "second derivatives"):
            gradient.sum().backward()

    def test_the_operators(self):

        q, k = self.draw(2, 9, 4, 16).requires_grad_(), self.draw(2, 9, 2, 16).requires_grad_()
        sinks = self.draw(4).requires_grad_()
        torch.library.opcheck(torch.ops.warptile.attention, (q, k, k, True), {"causal": True, "sinks": sinks})
        bias = self.draw(1, 9, 9).requires_grad_()
        for option in (bias, bias.detach().expand(4, 9, 9).requires_grad_()):
            torch.library.opcheck(torch.ops.warptile.attention, (q, k, k, True), {"bias": option, "sinks": sinks})
        rows, at = self.draw(20, 4, 16).requires_grad_(), torch.tensor([0, 3, 20], dtype=torch.int32)
        torch.library.opcheck(torch.ops.warptile.attention, (rows, rows, rows, True), {"cu_seqlens_q": at, "cu_seqlens_k": at})
        with torch.no_grad():
            out, lse = warptile.attention(q, k, k, return_lse=True)
            for needs in ([True, True, True, False, False], [False, True, False, False, False]):
                torch.library.opcheck(torch.ops.warptile.attention_backward, (out, None, q.detach(), k.detach(), k.detach(), out, lse, needs))
        heads = self.draw(2, 4, 9, 16).requires_grad_()
        for arguments in ((heads, heads, heads), (heads, heads, heads, self.draw(9, 9) > 0, False, 0.3, 2.0, sinks), (heads, heads, heads, bias)):
            torch.library.opcheck(torch.ops.warptile.scaled_dot_product_attention, arguments)

    def test_compiled(self):

        offsets = torch.tensor([0, 3, 20], dtype=torch.int32)
        heads, rows = [self.draw(2, 9, 4, 16) for _ in range(3)], [self.draw(20, 4, 16) for _ in range(3)]
        for function, tensors in (
            (lambda *x: flash_attn_func(*x, causal=True) * 2, heads),
            (lambda *x: warptile.attention(*x, causal=True) * 2, heads),
            (lambda *x: flash_attn_varlen_func(*x, offsets, offsets, 17, 17) * 2, rows),
            (lambda *x: warptile.torch.scaled_dot_product_attention(*x, is_causal=True) * 2, heads),
        ):
            torch.compiler.reset()
            made = torch.compile(function, fullgraph=True, backend="aot_eager")
            results = []
            for of in (made, function):
                learned = [x.clone().requires_grad_() for x in tensors]
                out = of(*learned)
                results.append([out, *torch.autograd.grad(out.square().sum(), learned)])
            for one, other in zip(*results, strict=True):
                self.assertTrue(torch.equal(one, other))

    def test_autocast(self):
        """As torch's function: the type of autocast, and gradients in those of the arguments."""
        ours, theirs = warptile.torch.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention
        q, k, v, bias = self.draw(2, 4, 9, 16), self.draw(2, 4, 17, 16), self.draw(2, 4, 17, 16), self.draw(9, 17)
        for tensors, options in (
            ((q, k, v), {}),
            ((q, k, v.bfloat16()), {"is_causal": True}),
            ((q.half(), k, v), {"attn_mask": bias}),
            ((q.double(), k.double(), v.double()), {}),
        ):
            for dtype in (torch.bfloat16, torch.float16):
                found = []
                for function in (ours, theirs):
                    learned = [x.clone().requires_grad_() for x in tensors]
                    with torch.autocast("cpu", dtype):
                        out = function(*learned, **options)
                        without = function(*tensors, **options)
                    self.assertEqual((out.dtype, without.dtype), (learned[0].dtype if tensors[0].dtype == torch.float64 else dtype,) * 2)
                    out.float().square().sum().backward()
                    found.append([out, without, *(x.grad for x in learned)])
                for one, other in zip(*found, strict=True):
                    self.assertEqual(one.dtype, other.dtype)
                    self.assertLess((one.double() - other.double()).abs().max().item(), 3e-2 * other.abs().max().item())
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
            self.assertEqual(ours(q, k, v).dtype, torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            compiled = torch.compile(lambda *x: ours(*x) * 2, fullgraph=True, backend="aot_eager")
            self.assertTrue(torch.equal(compiled(q, k, v), ours(q, k, v) * 2))
            softcap = {"attention_mask": None, "is_causal": False, "softcap": 2.0}
            self.assertEqual(warptile.torch.transformers_attention(None, q, k, v, **softcap)[0].dtype, torch.bfloat16)

    def test_checkpoint(self):
        """A call that is computed again has the same bits, and so have its gradients."""
        q, k, v = (self.draw(2, 4, 70, 16) for _ in range(3))
        functions = (
            lambda *x: warptile.torch.scaled_dot_product_attention(*x, is_causal=True),
            lambda *x: warptile.attention(*x, layout="bhsd", window=(9, 3)),
            lambda *x: flash_attn_func(*(y.transpose(1, 2) for y in x), softcap=3.0),
        )
        for function in functions:
            results = []
            for reentrant in (None, True, False):
                learned = [x.clone().requires_grad_() for x in (q, k, v)]
                if reentrant is None:
                    out = function(*learned)
                else:
                    out = torch.utils.checkpoint.checkpoint(function, *learned, use_reentrant=reentrant)
                out.square().sum().backward()
                results.append([out, *(x.grad for x in learned)])
            for other in results[1:]:
                self.assertTrue(all(torch.equal(*pair) for pair in zip(results[0], other, strict=True)))

    def test_the_same_bits(self):
        q = self.draw(2, 130, 4, 16)
        gradients = []
        for _ in range(3):
            learned = q.clone().requires_grad_()
            flash_attn_func(learned, learned, learned, deterministic=True).square().sum().backward()
            gradients.append(learned.grad)
        self.assertTrue(all(torch.equal(gradients[0], other) for other in gradients[1:]))

    def test_whose_gradients_after_activate(self):
        for capability, size, ours in (((9, 0), 64, True), ((9, 0), 192, True), ((9, 0), 256, True), ((8, 0), 128, False), ((10, 0), 128, False)):
            query, lse = torch.zeros(2, 8, 4, size), torch.zeros(2, 4, 8)
            with self.subTest(capability=capability, size=size), unittest.mock.patch.object(
                torch.cuda, "get_device_capability", return_value=capability
            ):
                self.assertEqual(warptile.torch._is_ours(query, True, lse, lse.shape, 0.0), ours)
                self.assertTrue(warptile.torch._is_ours(query, False, lse, lse.shape, 0.0))  # heads share keys


if __name__ == "__main__":
    unittest.main()
