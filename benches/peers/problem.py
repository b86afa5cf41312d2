"""Problems as attention_peers.py takes them: one line of words, as `warptile bench --help` explains."""

import math
import random
import re

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4}

# Up to this many operations for each byte of keys and values, reading them takes the time, as in `warptile bench`.
OPERATIONS_PER_BYTE = 64

# As in crates/cli/src/bench/gpu.rs, which says why. Sets of inputs and outputs, which calls rotate through: bytes of all, and how many.
ROTATED_BYTES = 256 << 20
SETS = (2, 64)

# The same where reading takes the time: bytes that are read of all sets, how many, and the part of the memory that they may have.
READ_BYTES = 512 << 20
READING_SETS = (2, 256)
PART_OF_MEMORY = 4

# Bytes that the calls of a graph read there, and the most calls.
REPLAYED_BYTES = 8 << 30
MOST_CALLS = 256


# Options between a product and a weight, in the words of `warptile`.
OPTION = re.compile(r"bias|keymask(=padding)?|alibi=head|softcap=[0-9.]+")

# Words that say how the program stores tensors and draws options, and nothing of what is computed.
OF_PROGRAM = re.compile(r"layout=bhsd|broadcast=\S+")


class Problem:
    """One line of a shape file; only what the peers can do."""

    def __init__(self, line):
        pattern = r"b(?P<b>\d+) q(?P<q>\d+) k(?P<k>\d+) h(?P<h>\d+)(/(?P<hk>\d+))? d(?P<d>\d+)(/(?P<dv>\d+))? (?P<t>f16|bf16|f32)(?P<rest>( \S+)*)"
        words = re.fullmatch(pattern, line)
        if not words:
            raise ValueError(f"{line}: the peers take bN qN kN hN[/N] dN[/N] TYPE, in this order, then mask=, sinks, scale=, layout=interleaved, pages=, runs=, lengths=, backward, and options")
        self.line = line
        self.batch = int(words["b"])
        self.heads = int(words["h"])
        self.kv_heads = int(words["hk"] or words["h"])
        self.query_len = int(words["q"])
        self.key_len = int(words["k"])
        self.head_dim = int(words["d"])
        self.value_dim = int(words["dv"] or words["d"])
        self.element = words["t"]
        self.mask = "none"
        self.sinks = False
        self.backward = False
        # What scores are multiplied by beside 1 / sqrt(head size). Peers have it in their queries.
        self.factor = 1.0
        self.interleaved = False
        self.page_rows = None
        self.runs = 1
        self.lengths = None
        # Words; and the dimensions, of batch, heads and queries, that a bias and a key mask depend on.
        self.options, self.scores_of = [], ["batch", "heads", "queries"]
        for word in words["rest"].split():
            name, _, value = word.partition("=")
            if word in ("mask=none", "mask=causal") or re.fullmatch(r"mask=window,\d+,0", word):
                self.mask = value
            elif word == "sinks":
                self.sinks = True
            elif word == "backward":
                self.backward = True
            elif name == "scale" and re.fullmatch(r"\d+(\.\d+)?", value):
                self.factor = float(value) * math.sqrt(self.head_dim)
            elif OPTION.fullmatch(word):
                self.options.append(word)
            elif name == "broadcast":
                self.scores_of = [dimension for dimension in self.scores_of if dimension not in value.split(",")]
            elif OF_PROGRAM.fullmatch(word):
                pass
            elif word == "layout=interleaved":
                self.interleaved = True
            elif name == "pages" and value.isdigit() and int(value) > 0:
                self.page_rows = int(value)
            elif name == "runs" and value.isdigit() and int(value) > 0:
                self.runs = int(value)
            elif word == "lengths=ragged":
                self.lengths = self.ragged()
            elif re.fullmatch(r"lengths=\d+(,\d+)*", word):
                self.lengths = [int(length) for length in value.split(",")]
            else:
                raise ValueError(f"{line}: the peers do not know `{word}`")
        if self.factor != 1.0 and (self.backward or self.options):
            raise ValueError(f"{line}: the peers take another scale without gradients and options only")
        if self.backward and not self.is_plain:
            raise ValueError(f"{line}: gradients are of whole sequences without windows or sinks")
        if self.options and not self.is_plain:
            raise ValueError(f"{line}: the peers take options of whole sequences only")
        if self.runs != 1 and self.page_rows is None:
            raise ValueError(f"{line}: there are runs of pages only")
        if self.interleaved and self.head_dim != self.value_dim:
            raise ValueError(f"{line}: for the peers, keys and values of one tensor have the same head size")
        if self.lengths and (len(self.lengths) != self.batch or max(self.lengths) > self.key_len):
            raise ValueError(f"{line}: {self.batch} lengths of up to {self.key_len} keys are needed")

    def ragged(self):
        """From an eighth of the keys to all, evenly distributed; the same for the same line."""
        draw = random.Random(f"{self.batch} {self.key_len}")
        return [draw.randint(-(-self.key_len // 8), self.key_len) for _ in range(self.batch)]

    @property
    def for_warptile(self):
        """The problem with the lengths in numbers: `warptile` would draw others."""
        if self.lengths:
            return re.sub(r" lengths=\S+", f" lengths={','.join(map(str, self.lengths))}", self.line)
        return self.line

    @property
    def softcap(self):
        """The bound of scores; 0 without one."""
        bounds = [float(word.partition("=")[2]) for word in self.options if word.startswith("softcap=")]
        return bounds[0] if bounds else 0.0

    @property
    def shown_keys(self):
        """Keys that a padding mask shows of each sequence; `warptile` draws others from the same range."""
        return self.ragged() if "keymask=padding" in self.options else None

    @property
    def without_options(self):
        """The line of the same problem without its options."""
        return " ".join(word for word in self.line.split() if not OPTION.fullmatch(word) and not OF_PROGRAM.fullmatch(word))

    @property
    def with_lengths(self):
        """The line of the problem whose sequences have as many keys as the padding mask shows."""
        return self.line.replace("keymask=padding", "lengths=ragged")

    @property
    def is_plain(self):
        """Whether every peer means the same by it: whole sequences, all of which each query sees, or those up to its own of as many keys.
        Keys and values are in tensors of their own."""
        dense = self.page_rows is None and self.lengths is None and not self.sinks and not self.interleaved
        return dense and (self.mask == "none" or (self.mask == "causal" and self.query_len == self.key_len))

    @property
    def on_cache(self):
        """Whether few queries meet the keys of a cache, which only a part of the peers can do."""
        return not self.backward and (not self.is_plain or self.query_len < self.key_len)

    @property
    def is_causal(self):
        """Whether the mask hides anything: from a single query it does not."""
        return self.mask == "causal" and not (self.query_len == 1 and self.on_cache)

    @property
    def window_left(self):
        """Keys before a query's own that it sees; -1: all."""
        return int(self.mask.split(",")[1]) if self.mask.startswith("window") else -1

    def key_lengths(self):
        return self.lengths or [self.key_len] * self.batch

    def seen(self, row, keys):
        """The first key that a query sees, and the one after the last."""
        if self.mask == "none":
            return 0, keys
        own = row + keys - self.query_len
        start = own - self.window_left if self.window_left >= 0 else 0
        end = min(max(own + 1, 0), keys)
        return min(max(start, 0), end), end

    @property
    def visible_pairs(self):
        pairs, of_length = 0, {}
        for keys in self.key_lengths():
            if keys not in of_length:
                ranges = (self.seen(row, keys) for row in range(self.query_len))
                of_length[keys] = sum(end - start for start, end in ranges)
            pairs += of_length[keys]
        return pairs

    @property
    def flops(self):
        products = 3 * self.head_dim + 2 * self.value_dim if self.backward else self.head_dim + self.value_dim
        return 2 * self.heads * self.visible_pairs * products

    def read_ranges(self):
        """Of each sequence, the first key that any query sees, and the one after the last."""
        lengths = self.key_lengths()
        return [(self.seen(0, keys)[0], self.seen(self.query_len - 1, keys)[1]) for keys in lengths]

    def read_starts(self, table, words):
        """Where blocks of so many words of 8 bytes begin that cover the keys that are read, in words from the first key. The values have
        the same places, counted from the first value. `table` has the pages of each sequence. A sequence's last block may go beyond its end,
        but not beyond its page."""
        row = self.row_bytes // 8
        unit = self.unit_words
        if self.row_bytes % 8 or unit % words:
            raise RuntimeError(f"pages are no multiple of {words} words")
        # Between those of one tensor lie as many words of values.
        step = 2 * unit if self.interleaved else unit
        starts = []
        for sequence, (first, end) in enumerate(self.read_ranges()):
            for block in range(first * row // words, -(-end * row // words)):
                index, inside = divmod(block * words, unit)
                place = table[sequence][index] if table else sequence
                starts.append(place * step + inside)
        return starts

    @property
    def unit_words(self):
        """Words of 8 bytes that the keys of a page have, or of a sequence that is not in pages: in one tensor, the first value lies so far
        behind the first key."""
        return (self.page_rows or self.key_len) * self.row_bytes // 8

    @property
    def row_bytes(self):
        """A key of all heads."""
        return self.kv_heads * self.head_dim * ELEMENT_BYTES[self.element]

    @property
    def pair_bytes(self):
        """A key and its value, of all heads."""
        return self.kv_heads * (self.head_dim + self.value_dim) * ELEMENT_BYTES[self.element]

    @property
    def kv_bytes(self):
        """Keys and values that some query sees: every kernel has to read them."""
        return self.pair_bytes * sum(end - start for start, end in self.read_ranges())

    @property
    def is_reading(self):
        return not self.backward and self.query_len < self.key_len and self.flops <= OPERATIONS_PER_BYTE * self.kv_bytes

    def bytes(self):
        """Queries, keys, values and output in memory, and the gradient of each if there are gradients."""
        queries = self.batch * self.query_len * self.heads * (self.head_dim + self.value_dim) * ELEMENT_BYTES[self.element]
        keys = self.batch * self.key_len if self.page_rows is None else self.pages() * self.page_rows
        return (queries + keys * self.pair_bytes) * (2 if self.backward else 1)

    def pages(self):
        """Pages that the sequences take."""
        return sum(-(-keys // self.page_rows) for keys in self.key_lengths())

    def copies(self, memory):
        """Sets of inputs that calls rotate through, on a GPU with this much memory."""
        if self.is_reading:
            wanted = min(-(-READ_BYTES // self.kv_bytes), memory // PART_OF_MEMORY // self.bytes())
            least, most = READING_SETS
        else:
            wanted = -(-ROTATED_BYTES // self.bytes())
            least, most = SETS
        return max(least, min(most, wanted))

    def calls(self, copies):
        """Calls of a graph that rotates through this many sets."""
        if not self.is_reading:
            return copies
        return max(copies, min(MOST_CALLS, -(-REPLAYED_BYTES // self.kv_bytes)))

    def row(self):
        """What every row says of its problem."""
        return {
            "problem": self.line,
            "batch": self.batch,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "query_len": self.query_len,
            "key_len": self.key_len,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "element": self.element,
            "mask": self.mask,
        }

    def speeds(self, microseconds):
        """What every row says of its speed."""
        return {
            "tflops": self.flops / microseconds * 1e-6,
            "kv_bytes": self.kv_bytes,
            "tb_s": self.kv_bytes / microseconds * 1e-6,
        }
