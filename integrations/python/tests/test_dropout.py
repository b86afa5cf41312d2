"""Dropout on the CPU, by the mask that `reference.dropout` computes: of numpy arrays, and of torch's tensors where torch is installed."""

import types
import unittest

import numpy as np
import reference
import test_gradients
import warptile
from reference import check, draw
from test_gradients import naive
from warptile.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

try:
    import torch
    import torch.utils.checkpoint
    import warptile.torch
    from warptile import _operators
except ImportError:
    torch = None

# A seed and an offset of 64 bits, then the numbers of the first sequence, head, query and key.
STATE = np.array([*np.array([0x123456789ABCDEF0, 3 << 40], np.uint64).view(np.int32), 5, 2, 64, 32], np.int32)


class Raw(unittest.TestCase):
    options = {"dropout_p": 0.3, "dropout_state": STATE}

    def test_gradients(self):
        tensors = draw(1, (2, 9, 4, 16), (2, 40, 2, 16), (2, 40, 2, 24))
        sinks, mask = np.array([0.5, -1, 2, 0], np.float32), np.random.default_rng(2).random((2, 1, 9, 40)) < 0.7
        for options in ({}, {"causal": True, "softcap": 2.0}, {"key_mask": mask, "sinks": sinks}):
            with self.subTest(list(options)):
                test_gradients.Raw.check(self, tensors, **options, **self.options)

    def test_outputs(self):
        q, k, v = draw(1, (3, 70, 4, 16), (3, 101, 2, 16), (3, 101, 2, 24))
        for p in (0.1, 0.5, 0.99):
            factors = reference.dropout(p, STATE, 3, 4, 70, 101)
            self.assertLess(abs((factors > 0).mean() - (1 - p)), 0.01)
            for dtype in ("float16", "float32"):
                tensors = [x.astype(dtype) for x in (q, k, v)]
                expected, lse = reference.attention(*tensors, causal=True, dropout=factors)
                out, found = warptile.attention(*tensors, causal=True, return_lse=True, dropout_p=p, dropout_state=STATE)
                check(self, out * (1 - p), expected * (1 - p), dtype)
                check(self, found, lse, "float32")
                swapped = (x.transpose(0, 2, 1, 3) for x in tensors)
                other = warptile.attention(*swapped, causal=True, layout="bhsd", dropout_p=p, dropout_state=STATE.tolist())
                np.testing.assert_array_equal(other.transpose(0, 2, 1, 3), out)

    def test_no_dropout(self):
        q, k = draw(1, (2, 9, 4, 16), (2, 17, 2, 16))
        np.testing.assert_array_equal(warptile.attention(q, k, k, dropout_p=0.0, dropout_state=STATE), warptile.attention(q, k, k))
        self.assertIn("dropout=0.5", warptile.explain(q, k, k, dropout_p=0.5))

    def test_errors(self):
        q, k = draw(1, (2, 9, 4, 16), (2, 17, 2, 16))
        out, lse = warptile.attention(q, k, k, return_lse=True, **self.options)
        calls = [
            lambda **options: warptile.attention(q, k, k, **options),
            lambda **options: warptile.attention_backward(q, q, k, k, out, lse, **options),
        ]
        for p in (1.0, -0.1, float("nan")):
            for call in (*calls, lambda **options: flash_attn_func(q, k, k, dropout_p=options["dropout_p"])):
                with self.assertRaisesRegex(warptile.InvalidInput, "dropout_p is .* a probability from 0 to below 1"):
                    call(dropout_p=p, dropout_state=STATE)
        for text, options in (
            ("dropout_p is given, but no dropout_state", {"dropout_p": 0.5}),
            ("dropout_state is given, but", {"dropout_state": STATE}),
            ("dropout_state has 7 values; 8 are needed", {"dropout_p": 0.5, "dropout_state": STATE[:7]}),
            (r"dropout_state has shape \[2, 4\]", {"dropout_p": 0.5, "dropout_state": STATE.reshape(2, 4)}),
            (r"dropout_state\[7\] is 8, but .* a multiple of 32", {"dropout_p": 0.5, "dropout_state": [0] * 7 + [8]}),
        ):
            for call in calls:
                with self.assertRaisesRegex(warptile.InvalidInput, text):
                    call(**options)
        with self.assertRaisesRegex(warptile.InvalidInput, "dropout_p is given, but no dropout_state"):
            flash_attn_varlen_func(q[0], k[0], k[0], [0, 9], [0, 17], 9, 17, dropout_p=0.1)


def factors(seed, p, batch, heads, queries, keys):
    """What weights are multiplied with by a call that is the first to draw after `torch.manual_seed(seed)`."""
    torch.manual_seed(seed)
    state = _operators.drawn_state(torch.empty(0)).tolist()
    assert len(state) == 8 and not any(state[4:])
    return torch.from_numpy(reference.dropout(p, state, batch, heads, queries, keys))


@unittest.skipIf(torch is None, "torch is not installed")
class Autograd(unittest.TestCase):
    def setUp(self):
        generator = torch.Generator().manual_seed(1)
        self.draw = lambda *shape: torch.randn(shape, generator=generator)

    def check(self, function, expected, *tensors, **options):
        """Results and gradients. `function` is called right after the seed was set."""

        def seeded(*tensors):
            torch.manual_seed(7)
            return function(*tensors)

        test_gradients.Autograd.check(self, seeded, expected, *tensors, **options)
        # It draws, and the same without a gradient.
        with torch.no_grad():
            one, other = seeded(*tensors), function(*tensors)
        self.assertFalse(torch.equal(one, other))
        self.assertTrue(torch.equal(one, seeded(*(x.clone().requires_grad_() for x in tensors))))
        with torch.no_grad():
            state = torch.get_rng_state()
            seeded(*tensors)
            self.assertTrue(torch.equal(state, torch.get_rng_state()), "what is drawn does not depend on gradients")

    def test_flash_attn(self):
        q, k, v = self.draw(2, 9, 4, 16), self.draw(2, 40, 2, 16), self.draw(2, 40, 2, 16)
        drop = factors(7, 0.3, 2, 4, 9, 40)
        for given, meant in (({}, {}), ({"causal": True, "softcap": 2.0}, {"causal": True, "softcap": 2.0}), ({"window_size": (9, 2)}, {"window": (9, 2)})):
            self.check(lambda *x: flash_attn_func(*x, dropout_p=0.3, **given), lambda *x: naive(*x, dropout=drop, **meant)[0], q, k, v)
        self.check(
            lambda *x: flash_attn_func(*x, 0.3, return_attn_probs=True)[0], lambda *x: naive(*x, dropout=drop)[0], q, k, v
        )
        self.assertIsNone(flash_attn_func(q, k, v, 0.3, return_attn_probs=True)[2])
        # Heads of another size.
        self.check(lambda *x: flash_attn_func(*x, 0.3), lambda *x: naive(*x, dropout=drop)[0], *(x[..., :12].contiguous() for x in (q, k, v)))
        half = [x.bfloat16() for x in (q, k, v)]
        self.check(lambda *x: flash_attn_func(*x, 0.3), lambda *x: naive(*x, dropout=drop)[0], *half, share=3e-2)
        qkv, kv = self.draw(2, 40, 3, 4, 16), self.draw(2, 40, 2, 2, 16)
        square = factors(7, 0.3, 2, 4, 40, 40)
        self.check(lambda x: flash_attn_qkvpacked_func(x, 0.3), lambda x: naive(*x.unbind(2), dropout=square)[0], qkv)
        self.check(lambda q, kv: flash_attn_kvpacked_func(q, kv, 0.3), lambda q, kv: naive(q, *kv.unbind(2), dropout=drop)[0], q, kv)

    def test_packed_sequences(self):
        at, lengths = torch.tensor([0, 3, 20], dtype=torch.int32), ((0, 3), (3, 20))
        drop = factors(7, 0.3, 2, 4, 17, 17)

        def each(q, k, v):
            return torch.cat([
                naive(*(x[None, a:b] for x in (q, k, v)), causal=True, dropout=drop[n, :, : b - a, : b - a])[0][0]
                for n, (a, b) in enumerate(lengths)
            ])

        q, k, v = self.draw(20, 4, 16), self.draw(20, 2, 16), self.draw(20, 2, 16)
        self.check(lambda *x: flash_attn_varlen_func(*x, at, at, 17, 17, 0.3, causal=True), each, q, k, v)
        kv, qkv = self.draw(20, 2, 2, 16), self.draw(20, 3, 4, 16)
        self.check(
            lambda q, kv: flash_attn_varlen_kvpacked_func(q, kv, at, at, 17, 17, 0.3, causal=True), lambda q, kv: each(q, *kv.unbind(1)), q, kv
        )
        self.check(lambda x: flash_attn_varlen_qkvpacked_func(x, at, 17, 0.3, causal=True), lambda x: each(*x.unbind(1)), qkv)

    def test_attention(self):
        q, k, v, sinks = self.draw(2, 9, 4, 16), self.draw(2, 17, 2, 16), self.draw(2, 17, 2, 24), self.draw(4)
        drop = factors(7, 0.5, 2, 4, 9, 17)
        self.check(
            lambda q, k, v, s: warptile.attention(q, k, v, sinks=s, causal=True, dropout_p=0.5),
            lambda q, k, v, s: naive(q, k, v, sinks=s, causal=True, dropout=drop)[0],
            *(q, k, v, sinks),
        )
        # A given state draws nothing.
        state, before = torch.from_numpy(STATE), torch.get_rng_state()
        found = warptile.attention(q, k, v, dropout_p=0.5, dropout_state=state)
        self.assertTrue(torch.equal(before, torch.get_rng_state()))
        expected = warptile.attention(*(x.numpy() for x in (q, k, v)), dropout_p=0.5, dropout_state=STATE)
        np.testing.assert_array_equal(found, expected)

    def test_scaled_dot_product_attention(self):
        own = warptile.torch.scaled_dot_product_attention
        q, k, v, bias = self.draw(2, 4, 9, 16), self.draw(2, 2, 17, 16), self.draw(2, 2, 17, 16), self.draw(9, 17)
        mask, drop = self.draw(2, 1, 9, 17) > -1, factors(7, 0.25, 2, 4, 9, 17)
        swapped = lambda x, **meant: naive(*(y.transpose(1, 2) for y in x), dropout=drop, **meant)[0].transpose(1, 2)
        for given, meant in (
            ({}, {}),
            ({"is_causal": True}, {"causal": True, "top_left": True}),
            ({"attn_mask": mask}, {"mask": mask}),
            ({"attn_mask": bias}, {"bias": bias}),
        ):
            self.check(lambda *x: own(*x, dropout_p=0.25, enable_gqa=True, **given), lambda *x: swapped(x, **meant), q, k, v)
        square, drop = [q, k[:, :, :9], v[:, :, :9]], factors(7, 0.25, 2, 4, 9, 9)
        sinks = self.draw(4)
        attend = warptile.torch.transformers_attention
        self.check(
            lambda q, k, v, s: attend(None, q, k, v, None, 0.25, is_causal=True, softcap=3.0, s_aux=s)[0].transpose(1, 2),
            lambda q, k, v, s: swapped((q, k, v), causal=True, softcap=3.0, sinks=s),
            *(*square, sinks),
        )
        self.check(
            lambda *x: attend(None, *x, None, 0.25, is_causal=True)[0].transpose(1, 2), lambda *x: swapped(x, causal=True), *square
        )
        # Torch computes what warptile cannot: every weight dropped.
        self.assertFalse(own(q, q, q, dropout_p=1.0).any())
        with self.assertRaisesRegex(RuntimeError, "dropout probability"):
            own(q, q, q, dropout_p=1.5)
        learned = bias[:, :9].clone().requires_grad_()
        self.assertIn("warptile", own(q, q, q, learned, 0.5).grad_fn.name())

    def test_operators_of_torch(self):
        """Those that `activate` replaces: gradients find the output's random numbers in what torch keeps for its own."""
        import warptile.torch as wt

        def kernel(*_, **__):
            raise AssertionError("torch computes it")

        original = types.SimpleNamespace(call_boxed=kernel)
        q, k, v, d = (self.draw(2, 9, 4, 16).half() for _ in range(4))
        learned = [x.double().requires_grad_() for x in (q, k, v)]
        expected = naive(*learned, causal=True, dropout=factors(7, 0.3, 2, 4, 9, 9))[0]
        meant = [expected, *torch.autograd.grad(expected, learned, d.double())]
        torch.manual_seed(7)
        heads = [x.transpose(1, 2) for x in (q, k, v)]
        out, lse, _, _, *rows, seed, offset, debug = wt._flash_of_sdpa(original)(None, *heads, 0.3, True)
        self.assertEqual([(x.dtype, x.shape) for x in (seed, offset)], [(torch.uint64, (2,)), (torch.uint64, ())])
        given = (d.transpose(1, 2), *heads, out, lse, None, None, *rows, 0.3, True, seed, offset)
        found = [out, *wt._gradients_of_sdpa(original)(None, *given)]
        torch.manual_seed(7)
        out, lse, *random, debug = wt._flash_of_rows(original)(None, q, k, v, None, None, 9, 9, 0.3, True, False)
        others = [out, *wt._gradients_of_rows(original)(None, d, q, k, v, out, lse, None, None, 9, 9, 0.3, True, *random)]
        for one, other, expected in zip(found, others, meant, strict=True):
            self.assertTrue(torch.equal(one.transpose(1, 2), other))
            torch.testing.assert_close(other.double(), expected, rtol=1e-2, atol=1e-2)
        for call in (
            lambda: wt._flash_of_sdpa(original)(None, *heads, 0.3, True, True),
            lambda: wt._flash_of_rows(original)(None, q, k, v, None, None, 9, 9, 0.3, True, True),
            lambda: wt._flash_of_rows(original)(None, q, k, v, None, None, 9, 9, 0.3, True, False, other=1),
        ):
            with self.assertRaisesRegex(warptile.Unsupported, "not supported by warptile with dropout"):
                call()

    def test_operators(self):
        q, heads = self.draw(2, 9, 4, 16).requires_grad_(), self.draw(2, 4, 9, 16).requires_grad_()
        given = {"dropout_p": 0.5, "dropout_state": torch.from_numpy(STATE)}
        torch.library.opcheck(torch.ops.warptile.attention, (q, q, q, True), given)
        torch.library.opcheck(torch.ops.warptile.scaled_dot_product_attention, (heads, heads, heads), given)
        plain = q.detach()
        out, lse = warptile.attention(plain, plain, plain, return_lse=True, **given)
        torch.library.opcheck(torch.ops.warptile.attention_backward, (out, None, plain, plain, plain, out, lse, [True] * 3 + [False] * 2), given)

    def test_compiled_and_checkpointed(self):
        """With the same seed all have the same bits, gradients included."""
        offsets = torch.tensor([0, 30, 70], dtype=torch.int32)
        heads = [self.draw(2, 70, 2, 16) for _ in range(3)]
        rows = [x[0] for x in heads]
        checkpoint = torch.utils.checkpoint.checkpoint
        for function, tensors in (
            (lambda *x: flash_attn_func(*x, 0.3, causal=True), heads),
            (lambda *x: warptile.attention(*x, dropout_p=0.3), heads),
            (lambda *x: flash_attn_varlen_func(*x, offsets, offsets, 40, 40, 0.3), rows),
            (lambda *x: warptile.torch.scaled_dot_product_attention(*x, dropout_p=0.3), heads),
        ):
            torch.compiler.reset()
            twice = lambda *x: function(function(*x), *x[1:])
            found = []
            for of in (
                twice,
                twice,
                torch.compile(twice, fullgraph=True, backend="aot_eager"),
                lambda *x: checkpoint(twice, *x, use_reentrant=False),
                lambda *x: checkpoint(twice, *x, use_reentrant=True),
            ):
                learned = [x.clone().requires_grad_() for x in tensors]
                torch.manual_seed(3)
                out = of(*learned)
                found.append([out, *torch.autograd.grad(out.square().sum(), learned)] if of is twice else [out])
                if of is not twice:
                    out.square().sum().backward()
                    found[-1] += [x.grad for x in learned]
            for other in found[1:]:
                for pair in zip(found[0], other, strict=True):
                    self.assertTrue(torch.equal(*pair))


if __name__ == "__main__":
    unittest.main()
