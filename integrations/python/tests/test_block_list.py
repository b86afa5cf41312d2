"""Lists of blocks: from masks, block masks and block-sparse matrices, and what attention makes of them."""

import unittest
import unittest.mock

import numpy as np
import warptile
from warptile import BlockList

try:
    import torch
    import torch.utils.checkpoint
except ImportError:
    torch = None

GENERATOR = np.random.default_rng(7)


def tensors(queries=200, keys=300):
    q = GENERATOR.standard_normal((2, queries, 4, 16)).astype(np.float32)
    k, v = GENERATOR.standard_normal((2, 2, keys, 2, 16)).astype(np.float32)
    return q, k, v


def masks(*lists, queries=4, keys=5):
    mask = GENERATOR.random((*lists, queries, keys)) < 0.5
    mask[..., 1, :] = False
    return mask


def of_keys(mask, queries=200, keys=300, size=64):
    """The mask of each query and key."""
    return np.repeat(np.repeat(mask, size, axis=-2), size, axis=-1)[..., :queries, :keys]


class BlockListTest(unittest.TestCase):
    def test_a_mask_has_four_dimensions(self):
        for mask in [masks(1), [[True]]]:
            with self.assertRaisesRegex(ValueError, "mask must be an array of shape"):
                BlockList.from_mask(mask)

    def test_flags_may_be_numpy_s_and_numbers_are_counts(self):
        words = [(True, ",batch"), (np.True_, ",batch"), (False, ""), (np.False_, ""), (None, ""), (2, ",batch=2"), (np.int64(3), ",batch=3")]
        for per_batch, word in words:
            self.assertEqual(BlockList([], [], per_batch=per_batch).arrangement, "64x64" + word)

    def test_a_list_is_its_mask(self):
        q, k, v = tensors()
        for lists in [(1, 1), (2, 1), (1, 4), (2, 4)]:
            mask = masks(*lists)
            blocks = BlockList.from_mask(mask)
            self.assertEqual((blocks.per_batch, blocks.per_head), tuple(count > 1 and count for count in lists))
            for causal in [False, True]:
                options = {"causal": causal, "return_lse": True}
                out, lse = warptile.attention(q, k, v, block_list=blocks, **options)
                shown, expected_lse = warptile.attention(q, k, v, key_mask=np.broadcast_to(of_keys(mask), (2, 4, 200, 300)), **options)
                np.testing.assert_allclose(out, shown, atol=1e-5)
                np.testing.assert_allclose(lse, expected_lse, atol=1e-5)
            self.assertTrue((out[:, 64:128] == 0).all() and np.isneginf(lse[:, :, 64:128]).all())

    def test_gradients_are_those_of_its_mask(self):
        q, k, v = tensors()
        d_out, d_lse = GENERATOR.standard_normal(q.shape).astype(np.float32), GENERATOR.standard_normal((2, 4, 200)).astype(np.float32)
        for lists, options in [((2, 4), {}), ((1, 4), {"causal": True, "sinks": np.arange(4, dtype=np.float32)}), ((1, 1), {"window": (100, 3)})]:
            mask, found = masks(*lists), []
            for shown in [{"block_list": BlockList.from_mask(mask)}, {"key_mask": np.broadcast_to(of_keys(mask), (2, 4, 200, 300))}]:
                results = warptile.attention(q, k, v, return_lse=True, **options, **shown)
                found.append(warptile.attention_backward(d_out, q, k, v, *results, d_lse=d_lse, **options, **shown))
            for gradient, expected in zip(*found):
                self.assertEqual(gradient is None, expected is None)
                if gradient is not None:
                    np.testing.assert_allclose(gradient, expected, atol=1e-4)

    def test_block_masks_and_matrices_are_the_same_lists(self):
        mask = masks(2, 4)
        expected = BlockList.from_mask(mask, 128)
        counts = mask.sum(-1)
        order = np.argsort(~mask, axis=-1, kind="stable")
        kv = BlockList.from_kv_blocks(counts, order)
        full = mask & (GENERATOR.random(mask.shape) < 0.5)
        partial = mask & ~full
        pair = lambda mask: (mask.sum(-1), np.argsort(~mask, axis=-1, kind="stable"))
        both = BlockList.from_kv_blocks(*pair(partial), full=pair(full))
        q, k, v = tensors(500, 600)
        out = warptile.attention(q, k, v, block_list=expected)
        for blocks in [kv, both]:
            self.assertEqual(blocks.arrangement, "128x128,batch=2,head=4")
            np.testing.assert_array_equal(warptile.attention(q, k, v, block_list=blocks), out)

        # As many blocks in every matrix.
        for lists in [(), (2,), (2, 4)]:
            rows, size = 4, 12
            numbers = [np.sort(GENERATOR.choice(rows * 5, size, replace=False)) for _ in range(int(np.prod(lists)))]
            crow = np.array([[np.searchsorted(one, row * 5) for row in range(rows + 1)] for one in numbers])
            crow = crow.reshape(*lists, rows + 1)
            columns = (np.array(numbers) % 5).reshape(*lists, size)
            whole = np.zeros((len(numbers), rows * 5), bool)
            for at, one in enumerate(numbers):
                whole[at, one] = True
            whole = whole.reshape(*(*lists, 1, 1)[:2], rows, 5)
            bsr, of_mask = BlockList.from_bsr(crow, columns, (128, 128)), BlockList.from_mask(whole, 128)
            np.testing.assert_array_equal(bsr.offsets, of_mask.offsets)
            np.testing.assert_array_equal(bsr.indices, of_mask.indices)
            self.assertEqual(bsr.arrangement, of_mask.arrangement)

    def test_a_mask_of_other_sequences_or_heads_is_refused(self):
        for lists, text in [((4, 1), "blocks has batch 4, but q has 2"), ((1, 8), "blocks has heads 8, but q has 4"), ((4, 2), "batch 4")]:
            mask = masks(*lists)
            counts, order = mask.sum(-1), np.argsort(~mask, axis=-1, kind="stable")
            for blocks in [BlockList.from_mask(mask), BlockList.from_kv_blocks(counts, order, 64)]:
                with self.assertRaisesRegex(warptile.InvalidInput, text):
                    warptile.attention(*tensors(), block_list=blocks)

    def test_errors_name_the_argument(self):
        q, k, v = tensors()
        for text, blocks in [
            (r"block_indices\[0\] is 9, but there are 5 blocks", BlockList([0, 1, 1, 1, 1], [9])),
            (r"block_offsets\[3\] ends the list", BlockList([0, 1, 1], [0])),
            ("blocks is 32x32, but must be 64 or 128 queries", BlockList([0, 1], [0], 32)),
            ("block_list: .*axb", BlockList([0, 1], [0], ("a", "b"))),
        ]:
            with self.assertRaisesRegex(warptile.InvalidInput, text):
                warptile.attention(q, k, v, block_list=blocks)
        with self.assertRaisesRegex(ValueError, "4 dimensions"):
            BlockList.from_bsr(np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 1, 1)), 64)

    @unittest.skipUnless(torch, "needs torch")
    def test_torch(self):
        mask = torch.from_numpy(masks(2, 4))
        q, k, v = map(torch.from_numpy, tensors())
        expected = warptile.attention(q, k, v, block_list=BlockList.from_mask(mask))
        counts, order = mask.sum(-1), mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        partial = torch.zeros_like(counts)
        for blocks in [
            BlockList.from_kv_blocks(counts, order, 64),
            BlockList.from_kv_blocks(partial, order, 64, full=(counts, order)),
        ]:
            self.assertTrue(torch.equal(warptile.attention(q, k, v, block_list=blocks), expected))


def dense(q, k, v, seen):
    """Attention and its lse by operations of torch; rows that see no key have an output of 0."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen, -1e30)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(3) * seen, v), scores.logsumexp(3).masked_fill(~seen.any(-1), -torch.inf)


def window(left, right, queries=200, keys=300):
    """The keys that a window shows, aligned with the last ones."""
    at = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
    return (at >= -left) & (at <= right)


@unittest.skipUnless(torch, "torch is not installed")
class Autograd(unittest.TestCase):
    def check(self, function, expected, *tensors):
        """Results and gradients of all tensors, of the lse where some key is seen."""
        found = []
        for of, dtype in [(function, torch.float32), (expected, torch.float64)]:
            learned = [x.to(dtype).requires_grad_() for x in tensors]
            results = of(*learned)
            generator = torch.Generator().manual_seed(2)
            weights = [torch.randn(x.shape, generator=generator).to(dtype).masked_fill(x.isinf(), 0) for x in results]
            found.append([*results, *torch.autograd.grad(results, learned, weights)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-5)

    def test_a_list_has_the_gradients_of_its_mask(self):
        everything = torch.tensor(True)
        for lists, options, inside in [
            ((1, 1), {}, everything),
            ((2, 1), {"causal": True}, window(300, 0)),
            ((1, 4), {"window": (100, 20)}, window(100, 20)),
            ((2, 4), {"layout": "bhsd"}, everything),
        ]:
            with self.subTest(lists, **options):
                mask = masks(*lists)
                seen = (torch.from_numpy(of_keys(mask)) & inside).expand(2, 4, -1, -1)
                turned = (lambda x: x.transpose(1, 2)) if "layout" in options else lambda x: x

                def expected(q, k, v):
                    out, lse = dense(*map(turned, (q, k, v)), seen)
                    return turned(out), lse

                for blocks in [BlockList.from_mask(mask), BlockList.from_mask(torch.from_numpy(mask))]:
                    self.check(
                        lambda *x: warptile.attention(*x, block_list=blocks, return_lse=True, **options),
                        expected,
                        *(turned(torch.from_numpy(x)).contiguous() for x in tensors()),
                    )

    def test_packed_sequences(self):
        queries, keys = [70, 130], [300, 200]
        offsets = {"cu_seqlens_q": [0, 70, 200], "cu_seqlens_k": [0, 300, 500]}
        q, k, v = (torch.from_numpy(x) for x in tensors(200, 500))
        for lists in [(1, 1), (2, 4)]:
            mask = masks(*lists)

            def expected(q, k, v):
                each = zip(q.split(queries), k.split(keys), v.split(keys), np.broadcast_to(mask, (2, 4, 4, 5)))
                each = [
                    dense(q[None], k[None], v[None], torch.from_numpy(of_keys(blocks, len(q), len(k))) & window(300, 0, len(q), len(k)))
                    for q, k, v, blocks in each
                ]
                return torch.cat([out[0] for out, _ in each]), torch.cat([lse[0] for _, lse in each], -1)

            options = {"causal": True, "return_lse": True, "block_list": BlockList.from_mask(mask)}
            self.check(lambda *x: warptile.attention(*x, **offsets, **options), expected, q[0], k[0], v[0])

    def test_a_block_mask_of_flex_attention(self):
        try:
            from torch.nn.attention.flex_attention import create_block_mask, create_mask
        except ImportError:
            self.skipTest("torch has no flex attention")
        blocks = torch.from_numpy(masks(4, queries=5, keys=5))
        for size in [64, (128, 64)]:
            shown = lambda batch, head, i, j: (i >= j) & blocks[head, i // 128, j // 64]
            mask = create_block_mask(shown, None, 4, 300, 300, device="cpu", BLOCK_SIZE=size)
            listed = BlockList.from_kv_blocks(
                mask.kv_num_blocks, mask.kv_indices, mask.BLOCK_SIZE, full=(mask.full_kv_num_blocks, mask.full_kv_indices)
            )
            seen = create_mask(shown, None, 4, 300, 300, device="cpu").expand(2, -1, -1, -1)
            self.check(
                lambda *x: warptile.attention(*x, block_list=listed, causal=True, return_lse=True),
                lambda *x: dense(*x, seen),
                *(torch.from_numpy(x) for x in tensors(300, 300)),
            )

    def test_tensors_that_need_no_gradient_get_none(self):
        blocks, given = BlockList.from_mask(masks(2, 4)), [torch.from_numpy(x) for x in tensors()]
        for wanted in range(3):
            learned = [x.clone().requires_grad_(at == wanted) for at, x in enumerate(given)]
            warptile.attention(*learned, block_list=blocks).sum().backward()
            self.assertEqual([x.grad is not None for x in learned], [at == wanted for at in range(3)])

    def test_arrays_may_change_before_gradients(self):
        q, k, v = (torch.from_numpy(x) for x in tensors())
        blocks, gradients = BlockList.from_mask(masks(2, 4)), []
        for ends_at in [len(blocks.indices), 0]:
            learned = q.clone().requires_grad_()
            out = warptile.attention(learned, k, v, block_list=blocks)
            blocks.indices[ends_at:] = -1
            out.sum().backward()
            gradients.append(learned.grad)
        self.assertTrue(torch.equal(*gradients) and gradients[0].any())
        # Lists of Python, too.
        listed = BlockList([0, 1, 1, 2, 3], [0, 4, 2])
        expected = warptile.attention(q, k, v, block_list=listed)
        self.assertTrue(torch.equal(warptile.attention(q.clone().requires_grad_(), k, v, block_list=listed), expected))

    def test_compiled(self):
        mask = torch.from_numpy(masks(2, 4))
        counts, order = mask.sum(-1), mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        of_mask, of_numpy = BlockList.from_mask(mask), BlockList.from_mask(mask.numpy())
        given = [torch.from_numpy(x) for x in tensors()]
        attend = lambda q, k, v, blocks: warptile.attention(2 * q, k, v, block_list=blocks, causal=True, return_lse=True)
        for name, function in {
            "closed over": lambda *x: attend(*x[:3], of_mask),
            "of numpy": lambda *x: attend(*x[:3], of_numpy),
            "made inside": lambda *x: attend(*x[:3], BlockList.from_kv_blocks(x[3], x[4], 64)),
            "two lists": lambda *x: attend(*x[:3], BlockList.from_kv_blocks(torch.zeros_like(x[3]), x[4], 64, full=(x[3], x[4]))),
        }.items():
            with self.subTest(name):
                torch.compiler.reset()
                results = []
                for of in [function, torch.compile(function, fullgraph=True, backend="aot_eager")]:
                    learned = [x.clone().requires_grad_() for x in given]
                    out, lse = of(*learned, counts, order)
                    out.sum().backward()
                    results.append([out, lse, *(x.grad for x in learned)])
                for found, expected in zip(*results, strict=True):
                    self.assertTrue(torch.equal(found, expected))
        torch.compiler.reset()
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        # Lists of other lengths are not compiled for once more each.
        with unittest.mock.patch.object(torch._dynamo.config, "recompile_limit", 3):
            for share in range(1, 6):
                compiled(*given, BlockList.from_mask(torch.rand(2, 4, 4, 5) < share / 5))
        for blocks in [of_mask, BlockList.from_mask(~mask), BlockList.from_mask(mask[..., :2, :3], 128)]:
            for found, expected in zip(compiled(*given, blocks), attend(*given, blocks)):
                self.assertTrue(torch.equal(found, expected))
        with self.assertRaisesRegex(Exception, "block_list must be a warptile.BlockList"):
            compiled(*given, mask)

    def test_checkpoints_and_the_operator(self):
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in tensors())
        blocks = BlockList.from_mask(torch.from_numpy(masks(2, 4)))
        attend = lambda *x: warptile.attention(*x, block_list=blocks).square().sum()
        kept = torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False)
        for found, expected in zip(torch.autograd.grad(kept, (q, k, v)), torch.autograd.grad(attend(q, k, v), (q, k, v))):
            self.assertTrue(torch.equal(found, expected))
        options = {"blocks": blocks.blocks, "blocks_each": blocks.each, "block_offsets": blocks.offsets, "block_indices": blocks.indices}
        torch.library.opcheck(torch.ops.warptile.attention, (q, k, v, True), options)


if __name__ == "__main__":
    unittest.main()
