"""A small transformer learns with our attention as with torch's own, and twice the same; skipped where torch is missing."""

import functools
import unittest
from pathlib import Path

try:
    import torch
    import warptile.torch
    from torch.nn import functional
except ImportError:
    torch = None

HEADS, HEAD_SIZE, LAYERS, LENGTH, BATCH, STEPS = 2, 16, 2, 32, 4, 200
WIDTH = HEADS * HEAD_SIZE


def model():
    layer = lambda: torch.nn.ModuleDict({
        "before_attention": torch.nn.LayerNorm(WIDTH),
        "qkv": torch.nn.Linear(WIDTH, 3 * WIDTH),
        "project": torch.nn.Linear(WIDTH, WIDTH),
        "before_rows": torch.nn.LayerNorm(WIDTH),
        "rows": torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)),
    })
    return torch.nn.ModuleDict({
        "bytes": torch.nn.Embedding(256, WIDTH),
        "places": torch.nn.Embedding(LENGTH, WIDTH),
        "layers": torch.nn.ModuleList(layer() for _ in range(LAYERS)),
        "last": torch.nn.LayerNorm(WIDTH),
    })


def logits(model, text, attend):
    x = model["bytes"](text) + model["places"].weight
    for layer in model["layers"]:
        qkv = layer["qkv"](layer["before_attention"](x)).view(BATCH, LENGTH, 3, HEADS, HEAD_SIZE)
        out = attend(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + layer["project"](out.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        x = x + layer["rows"](layer["before_rows"](x))
    return model["last"](x) @ model["bytes"].weight.T / WIDTH**0.5


def losses(attend, text):
    torch.manual_seed(3)
    learned = model()
    optimizer = torch.optim.AdamW(learned.parameters(), lr=3e-3)
    found = []
    for _ in range(STEPS):
        first = torch.randint(len(text) - LENGTH, (BATCH, 1))
        pieces = text[first + torch.arange(LENGTH + 1)]
        loss = functional.cross_entropy(logits(learned, pieces[:, :-1], attend).flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found), [weight.detach() for weight in learned.parameters()]


@unittest.skipIf(torch is None, "torch is not installed")
class Training(unittest.TestCase):
    def setUp(self):
        # More threads take longer for matrices this small.
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)

    def test_losses_are_those_with_torchs_own_attention(self):
        text = torch.tensor(list(Path(__file__).read_bytes()))
        ours, weights = losses(warptile.torch.scaled_dot_product_attention, text)
        theirs, _ = losses(functional.scaled_dot_product_attention, text)
        self.assertLess(ours[-1].item(), 0.7 * ours[0].item())
        # How far rounding alone leads: torch's attention in float64.
        apart, _ = losses(lambda q, k, v, is_causal: functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=is_causal).float(), text)
        noise = (theirs - apart).abs().cummax(0).values + 1e-6
        self.assertTrue(((ours - theirs).abs() <= 8 * noise).all(), (ours - theirs).abs() / noise)
        again, same = losses(warptile.torch.scaled_dot_product_attention, text)
        self.assertTrue(torch.equal(ours, again))
        self.assertTrue(all(torch.equal(one, other) for one, other in zip(weights, same)))

    def test_the_same_seed_drops_the_same_weights(self):
        text = torch.tensor(list(Path(__file__).read_bytes()))
        own = warptile.torch.scaled_dot_product_attention
        (ours, weights), (again, same) = (losses(functools.partial(own, dropout_p=0.1), text) for _ in range(2))
        self.assertLess(ours[-1].item(), 0.7 * ours[0].item())
        self.assertTrue(torch.equal(ours, again))
        self.assertTrue(all(torch.equal(one, other) for one, other in zip(weights, same)))


if __name__ == "__main__":
    unittest.main()
