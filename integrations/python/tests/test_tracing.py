"""Attention where torch records or transforms operators, and of classes that inherit from its tensors. Skipped where torch is missing;
`.ci/run python-torch` installs one.
"""

import unittest
import warnings

try:
    import torch
except ImportError:
    torch = None

import warptile
import warptile.flash_attn


@unittest.skipUnless(torch is not None, "torch is not installed")
class Traced(unittest.TestCase):
    def setUp(self):
        import warptile.torch

        generator = torch.Generator().manual_seed(1)
        self.draw = lambda: [torch.randn(2, 9, 4, 16, generator=generator) for _ in range(3)]
        sdpa, flash = warptile.torch.scaled_dot_product_attention, warptile.flash_attn.flash_attn_func
        # The second head sees no keys.
        blocks = warptile.BlockList([0, 1, 1, 2, 3], [0, 0, 0], per_head=True)
        self.functions = {
            "attention": lambda q, k, v: q + warptile.attention(q, k, v, causal=True),
            "lse": lambda q, k, v: warptile.attention(q, k, v, return_lse=True)[1] + q.sum(),
            "block_list": lambda q, k, v: q + warptile.attention(q, k, v, block_list=blocks),
            "flash_attn_func": lambda q, k, v: q + flash(q, k, v, causal=True),
            "scaled_dot_product_attention": lambda q, k, v: q + sdpa(q, k, v, is_causal=True),
        }

    def check(self, trace, requires_grad=False):
        """A trace computes with the tensors that it is given, not with those that it was made of."""
        for name, function in self.functions.items():
            with self.subTest(name), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                traced = trace(function, tuple(x.requires_grad_(requires_grad) for x in self.draw()))
                others = self.draw()
                torch.testing.assert_close(traced(*others), function(*others))

    def test_jit_trace(self):
        self.check(torch.jit.trace)
        self.check(torch.jit.trace, requires_grad=True)

    def test_make_fx(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        self.check(lambda function, tensors: make_fx(function)(*tensors))
        self.check(lambda function, tensors: make_fx(function, tracing_mode="fake")(*tensors))

    def test_export(self):
        def export(function, tensors):
            class Module(torch.nn.Module):
                def forward(self, q, k, v):
                    return function(q, k, v)

            return torch.export.export(Module(), tensors, strict=False).module()

        self.check(export)

    def test_vmap(self):
        def mapped(function, _):
            return lambda *tensors: torch.vmap(function)(*(x[None] for x in tensors))[0]

        self.check(mapped)

    def test_what_is_no_operator(self):
        out, lse = warptile.attention(*self.draw(), return_lse=True)
        merge = lambda out, lse: warptile.merge([(out, lse), (out, lse)])
        with self.assertRaisesRegex(warptile.Unsupported, r"parts\[\].out is traced or transformed by torch"):
            torch.jit.trace(merge, (out, lse))

    def test_subclasses(self):
        class Named(torch.Tensor):
            pass

        for name, function in self.functions.items():
            for at in range(3):
                with self.subTest(name, at=at):
                    others = [x.requires_grad_() for x in self.draw()]
                    tensors = [x.detach().clone().requires_grad_() for x in others]
                    inputs = [x.as_subclass(Named) if index == at else x for index, x in enumerate(tensors)]
                    out, expected = function(*inputs), function(*others)
                    torch.testing.assert_close(out.as_subclass(torch.Tensor), expected)
                    out.sum().backward()
                    expected.sum().backward()
                    for x, y in zip(tensors, others):
                        torch.testing.assert_close(x.grad, y.grad)
        self.assertIsInstance(warptile.attention(*(x.as_subclass(Named) for x in self.draw())), torch.Tensor)

    def test_subclasses_in_caches(self):
        class Named(torch.Tensor):
            pass

        q, k, v = self.draw()
        lengths, table = torch.tensor([5, 7], dtype=torch.int32), torch.tensor([[1], [0]], dtype=torch.int32)
        plain = warptile.flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, block_table=table)
        named = (x.as_subclass(Named) for x in (q, k, v))
        found = warptile.flash_attn.flash_attn_with_kvcache(*named, cache_seqlens=5, cache_batch_idx=torch.tensor([1, 0], dtype=torch.int32))
        self.assertEqual(type(plain), torch.Tensor)
        self.assertIsInstance(found, torch.Tensor)

    def test_no_elements(self):
        """An expanded gradient of an output without elements has strides of 0."""
        for batch, queries, keys in ((0, 5, 5), (2, 0, 5), (2, 5, 0)):
            with self.subTest(batch=batch, queries=queries, keys=keys):
                q, k = torch.ones(batch, queries, 2, 16, requires_grad=True), torch.ones(batch, keys, 2, 16, requires_grad=True)
                out, lse = warptile.attention(q, k, k, return_lse=True)
                (out.sum() + lse.nan_to_num(0, 0, 0).sum()).backward()
                self.assertEqual((q.grad.shape, k.grad.shape), (q.shape, k.shape))
                self.assertFalse(q.grad.any() or k.grad.any())


if __name__ == "__main__":
    unittest.main()
