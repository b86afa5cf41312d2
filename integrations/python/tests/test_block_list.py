"""Lists of blocks: from masks, block masks and block-sparse matrices, and what attention makes of them."""

import unittest

import numpy as np
import warptile
from warptile import BlockList

try:
    import torch
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


if __name__ == "__main__":
    unittest.main()
