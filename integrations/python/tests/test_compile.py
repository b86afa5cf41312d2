"""Attention in the graphs of torch.compile, on the CPU. Skipped where torch is missing; `.ci/run python-torch` installs one."""

import ast
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

try:
    import torch
except ImportError:
    torch = None

import warptile
import warptile.flash_attn


@unittest.skipUnless(torch is not None and hasattr(torch, "compile"), "torch is not installed")
class Compiled(unittest.TestCase):
    def setUp(self):
        generator = torch.Generator().manual_seed(1)
        self.draw = lambda *shape: torch.randn(shape, generator=generator)

    def check(self, function, *tensors):
        """The same bits as without a compiler, in one graph."""
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for found, expected in zip(compiled(*tensors), function(*tensors), strict=True):
            self.assertTrue(torch.equal(found, expected))
            self.assertEqual(found.stride(), expected.stride())

    def test_attention(self):
        q, k, v = self.draw(2, 9, 4, 16), self.draw(2, 17, 2, 16), self.draw(2, 17, 2, 24)
        mask = self.draw(2, 17) > -1
        options = [
            {},
            {"causal": True, "diagonal": "top-left", "scale": 0.5},
            {"window": (3, None), "softcap": 5.0, "alibi_slopes": [0.5, 0.25, 0.1, 0.2]},
            {"key_mask": mask, "sinks": torch.ones(4)},
        ]
        for given in options:
            with self.subTest(str(given)):
                self.check(lambda q, k, v: warptile.attention(2 * q, k, v, return_lse=True, **given), q, k, v)
                self.check(lambda q, k, v: [warptile.attention(2 * q, k, v, **given)], q, k, v)

    def test_layout_and_packed_sequences(self):
        q, k = self.draw(2, 4, 9, 16), self.draw(2, 2, 9, 16)
        self.check(lambda q, k: warptile.attention(q.contiguous(), k, k, layout="bhsd", return_lse=True)[1:], q, k)
        rows, offsets = self.draw(20, 4, 16), torch.tensor([0, 3, 20], dtype=torch.int32)
        self.check(
            lambda x, at: warptile.attention(x, x, x, cu_seqlens_q=at, cu_seqlens_k=at, causal=True, return_lse=True), rows, offsets
        )

    def test_scales_of_the_host(self):
        q, k = self.draw(2, 3, 4, 16), torch.full((2, 9, 2, 16), 56, dtype=torch.uint8)
        self.check(lambda q, k: [warptile.attention(q, k, k, k_descale=0.5, v_descale=[0.25, 2.0])], q, k)

    def test_flash_attn(self):
        q, k, v = self.draw(2, 9, 4, 12), self.draw(2, 17, 2, 12), self.draw(2, 17, 2, 12)
        flash = warptile.flash_attn.flash_attn_func
        self.check(lambda q, k, v: [flash(2 * q, k, v, causal=True, window_size=(3, 0))], q, k, v)
        self.check(lambda q, k, v: flash(2 * q, k, v, return_attn_probs=True)[:2], q, k, v)

    def test_flash_attn_of_packed_sequences(self):
        rows, offsets = self.draw(20, 4, 16), torch.tensor([0, 3, 20], dtype=torch.int32)
        flash = warptile.flash_attn.flash_attn_varlen_func
        self.check(lambda x, at: [flash(x, x, x, at, at, 17, 17, causal=True)], rows, offsets)

    def test_the_operator_has_every_option(self):
        from warptile import _operators

        stub = ast.parse((Path(warptile.__path__[0]) / "generated" / "__init__.pyi").read_text(encoding="utf-8"))
        [options] = [part for part in stub.body if isinstance(part, ast.ClassDef) and part.name == "Options"]
        listed = {field.target.id for field in options.body if isinstance(field, ast.AnnAssign)}
        renamed = {"left": "window", "right": "window", "kernel_name": "kernel"}
        renamed |= dict.fromkeys(("blocks", "blocks_each", "block_offsets", "block_indices"), "block_list")
        taken = {renamed.get(name, name) for name in (*_operators._TENSORS, *_operators._OTHERS)}
        self.assertEqual(taken - {"_caller"}, listed - {"out", "lse", "stream"})

    def test_any_order_of_imports(self):
        program = (
            "import {}, {}\nq = torch.ones(1, 2, 1, 8)\n"
            "f = torch.compile(lambda q: warptile.attention(q, q, q), fullgraph=True, backend='eager')\nassert torch.equal(f(q), q)"
        )
        # Who only asks whether there is a compiler does not load it.
        asked = "warptile, importlib.util\nassert importlib.util.find_spec('torch._dynamo') and importlib.util.find_spec('torch._dynamo')\nimport torch"
        for order in (("torch", "warptile"), ("warptile", "torch"), ("torch._dynamo", "torch, warptile"), ("os", asked)):
            with self.subTest(order):
                subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", program.format(*order)], check=True)

    def test_versions_of_torch_without_operators(self):
        program = (
            "import torch, torch.distributed\ndel torch.library.register_fake\nimport warptile, warptile.ring_flash_attn\nq = torch.ones(1, 2, 1, 8)\n"
            "assert torch.equal(warptile.attention(q, q, q), q)\n"
            "try:\n    warptile.attention(q.requires_grad_(), q, q)\n"
            "except warptile.Unsupported as error:\n    print(error)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertRegex(done.stdout, "too old for .* they need 2.4 or newer", done.stderr)

    @unittest.skipUnless(shutil.which("g++"), "inductor needs a C++ compiler")
    def test_inductor_with_other_shapes(self):
        torch.compiler.reset()
        function = lambda q, k: warptile.attention(2 * q, k, k, causal=True, kernel="cpu") + 1
        compiled = torch.compile(function, fullgraph=True, dynamic=True)
        for length in (9, 12):
            q, k = self.draw(2, length, 4, 16), self.draw(2, 17, 2, 16)
            self.assertTrue(torch.equal(compiled(q, k), function(q, k)))

    def test_the_operator(self):
        import torch._dynamo  # noqa: F401, makes the operator

        q = self.draw(2, 9, 4, 16)
        torch.library.opcheck(torch.ops.warptile.attention, (q, q, q, True), {"causal": True})
        with self.assertRaisesRegex(warptile.Unsupported, "no gradient without want_lse"):
            torch.ops.warptile.attention(q.requires_grad_(), q, q, False)[0].sum().backward()


if __name__ == "__main__":
    unittest.main()
