"""Kernels for queries on a cache of keys and values: few queries, pages, lengths of their own, windows.

A contestant is a list of variants, of which the fastest is measured: nobody can say that a peer was called the wrong way.
A variant is a name and a function that prepares it (a plan, pages in the form a library wants) and returns the call: from the
number of a set of inputs to the output, [batch, queries, heads, head size]. What a library plans once for many layers is done
there, outside of what is measured.
"""

import concurrent.futures
import contextlib
import functools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Outputs of all peers against float32, root mean square over that of the output. bf16 alone gives 0.003; a wrong mask or
# page 0.1 and more.
ALLOWED_ERROR = 0.02

# Rows of the pages that FlashInfer, which takes nothing else, sees a dense cache as.
DENSE_AS_PAGES = 64

FLASHINFER_WORKSPACE = 512 << 20


class Cache:
    """Sets of inputs for one problem: queries, keys and values of each, and the lengths and pages that all share. Interleaved keys and values
    are views of one tensor, `both`."""

    def __init__(self, problem, element, copies):
        self.problem = problem
        p = problem

        def normal(*shape):
            return [torch.randn(shape, device="cuda", dtype=element) for _ in range(copies)]

        self.q = [q * p.factor for q in normal(p.batch, p.query_len, p.heads, p.head_dim)]
        self.lengths = torch.tensor(p.key_lengths(), device="cuda", dtype=torch.int32)
        entries, rows = (p.batch, p.key_len) if p.page_rows is None else (p.pages(), p.page_rows)
        if p.interleaved:
            self.both = normal(entries, 2, rows, p.kv_heads, p.head_dim)
            self.k, self.v = ([both[:, which] for both in self.both] for which in (0, 1))
        else:
            self.both = None
            self.k, self.v = (normal(entries, rows, p.kv_heads, size) for size in (p.head_dim, p.value_dim))
        if p.page_rows is None:
            self.table = None
            return
        # Runs of neighbouring pages in random order.
        runs = torch.randperm(-(-p.pages() // p.runs), device="cuda", dtype=torch.int32)
        order = (runs[:, None] * p.runs + torch.arange(p.runs, device="cuda", dtype=torch.int32)).flatten()
        order = order[order < p.pages()]
        self.table = torch.zeros((p.batch, -(-p.key_len // p.page_rows)), device="cuda", dtype=torch.int32)
        begin = 0
        for sequence, count in enumerate(self.pages_of_each()):
            self.table[sequence, :count] = order[begin : begin + count]
            begin += count

    def pages_of_each(self):
        return [-(-keys // self.problem.page_rows) for keys in self.problem.key_lengths()]

    def rows_of(self, tensor, sequence):
        """The keys or values of a sequence, [keys, heads, head size]."""
        keys = self.problem.key_lengths()[sequence]
        if self.table is None:
            return tensor[sequence, :keys]
        pages = self.table[sequence, : self.pages_of_each()[sequence]].long()
        return tensor[pages].flatten(0, 1)[:keys]

    def check(self, output, i):
        """Raises if the output of set `i` is wrong, by its first and its last sequence. Sinks are left out, as by all peers."""
        p = self.problem
        group = p.heads // p.kv_heads
        for sequence in {0, p.batch - 1}:
            k, v = (self.rows_of(tensor[i], sequence).float() for tensor in (self.k, self.v))
            hidden = torch.ones((p.query_len, len(k)), device="cuda", dtype=torch.bool)
            for row in range(p.query_len):
                start, end = p.seen(row, len(k))
                hidden[row, start:end] = False
            q = self.q[i][sequence].float() * p.head_dim**-0.5
            error, square = 0.0, 0.0
            for head in range(p.heads):
                scores = (q[:, head] @ k[:, head // group].T).masked_fill_(hidden, -torch.inf)
                exact = torch.softmax(scores, dim=-1) @ v[:, head // group]
                found = output[sequence, :, head].float()
                error += float(((found - exact) ** 2).sum())
                square += float((exact**2).sum())
            # Turned around, NaN would pass.
            if not error <= ALLOWED_ERROR**2 * square:
                raise RuntimeError(f"wrong result for sequence {sequence}: relative error {(error / square) ** 0.5:.3f}")


def plain_only(cache):
    """For peers that take neither pages nor lengths, windows or sinks."""
    p = cache.problem
    if p.page_rows is not None or p.lengths is not None or p.window_left >= 0:
        raise RuntimeError("takes dense keys of equal lengths and no window")


def fa2(cache):
    """FlashAttention-2 as PyTorch has it. Its causal mask is aligned bottom-right if it is called directly; through the dispatcher
    PyTorch would align it top-left."""

    def prepare():
        plain_only(cache)
        q, k, v = ([tensor.transpose(1, 2) for tensor in tensors] for tensors in (cache.q, cache.k, cache.v))
        operator = torch.ops.aten._scaled_dot_product_flash_attention
        return lambda i: operator(q[i], k[i], v[i], 0.0, cache.problem.is_causal)[0].transpose(1, 2)

    return [("direct", prepare), ("dispatched", dispatched(cache, SDPBackend.FLASH_ATTENTION))]


def cudnn(cache):
    return [("dispatched", dispatched(cache, SDPBackend.CUDNN_ATTENTION))]


def efficient(cache):
    return [("dispatched", dispatched(cache, SDPBackend.EFFICIENT_ATTENTION))]


def dispatched(cache, backend):
    def prepare():
        plain_only(cache)
        if cache.problem.is_causal:
            raise RuntimeError("PyTorch aligns causal masks top-left")
        grouped = cache.problem.heads != cache.problem.kv_heads
        q, k, v = ([tensor.transpose(1, 2) for tensor in tensors] for tensors in (cache.q, cache.k, cache.v))

        def call(i):
            with sdpa_kernel([backend]), torch.no_grad():
                return scaled_dot_product_attention(q[i], k[i], v[i], enable_gqa=grouped).transpose(1, 2)

        return call

    return prepare


def fa3(cache, operators):
    """FlashAttention-3 with its cache, by its operators."""
    p = cache.problem
    window = {"window_size_left": p.window_left, "window_size_right": 0} if p.window_left >= 0 else {}

    def variant(splits, lengths, planned):
        # 0 splits: as many as FlashAttention-3 finds best. A plan is made for those.
        def prepare():
            given = {"is_causal": p.is_causal, **window}
            plan = None
            if planned:
                plan = operators.get_scheduler_metadata(
                    p.batch, p.query_len, p.key_len, p.heads, p.kv_heads, p.head_dim, p.value_dim, cache.q[0].dtype,
                    cache.lengths, page_size=p.page_rows, **given,
                )  # fmt: skip
            if lengths:
                given |= {"seqused_k": cache.lengths, "page_table": cache.table, "scheduler_metadata": plan}
            return lambda i: operators.fwd(cache.q[i], cache.k[i], cache.v[i], num_splits=splits, **given)[0]

        return prepare

    variants = [("planned", variant(0, True, True)), ("lengths", variant(0, True, False))]
    if p.page_rows is None and p.lengths is None:
        variants += [("split", variant(0, False, False)), ("whole", variant(1, False, False))]
    return variants


def fa4(cache, attention):
    """FlashAttention-4 on dense caches; on Hopper it splits no keys."""

    def prepare():
        plain_only(cache)
        return lambda i: attention(cache.q[i], cache.k[i], cache.v[i], cache.problem.is_causal)

    return [("dense", prepare)]


class InPages:
    """A cache as FlashInfer takes it: pages of each sequence one after the other, where they begin, and keys in the last. A dense
    cache is seen as pages."""

    def __init__(self, cache):
        p = cache.problem
        if p.page_rows is None:
            self.rows = DENSE_AS_PAGES
            if p.key_len % self.rows:
                raise RuntimeError(f"a dense cache is not in pages of {self.rows}")
            of_each = p.key_len // self.rows
        else:
            self.rows = p.page_rows
        counts = [-(-keys // self.rows) for keys in p.key_lengths()]
        if p.page_rows is None:
            step = 2 * of_each if p.interleaved else of_each
            indices = [torch.arange(count, dtype=torch.int32) + b * step for b, count in enumerate(counts)]

            def in_pages(tensor):
                return tensor.view(-1, self.rows, p.kv_heads, tensor.shape[-1])

            if p.interleaved:
                # The pages of a sequence's values follow those of its keys.
                self.caches = [(in_pages(both)[:-of_each], in_pages(both)[of_each:]) for both in cache.both]
            else:
                self.caches = [(in_pages(k), in_pages(v)) for k, v in zip(cache.k, cache.v)]
        else:
            indices = [cache.table[b, :count] for b, count in enumerate(counts)]
            # FlashInfer takes one tensor as it is.
            self.caches = cache.both or list(zip(cache.k, cache.v))
        self.indices = torch.cat(indices).cuda()
        self.starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32).cuda()
        last = [keys - (count - 1) * self.rows for keys, count in zip(p.key_lengths(), counts)]
        self.last = torch.tensor(last, dtype=torch.int32, device="cuda")


def flashinfer(cache, library):
    """FlashInfer over pages, planned once, on tensor cores. Its kernel for one query on CUDA cores was the faster of the two on no
    problem, and its FlashAttention-3 is slower than FlashAttention-3, which is measured by itself."""
    p = cache.problem
    types = {"q_data_type": cache.q[0].dtype, "kv_data_type": cache.k[0].dtype}

    def variant(make_and_plan):
        def prepare():
            # FlashInfer wants its workspace zeroed before it is used first.
            workspace = torch.zeros(FLASHINFER_WORKSPACE, dtype=torch.uint8, device="cuda")
            pages = InPages(cache)
            wrapper = make_and_plan(workspace, pages)
            q = [tensor.flatten(0, 1) for tensor in cache.q]
            shape = (*cache.q[0].shape[:3], p.value_dim)
            return lambda i: wrapper.run(q[i], pages.caches[i]).view(shape)

        return prepare

    def one_query(workspace, pages):
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        sizes = (p.heads, p.kv_heads, p.head_dim, pages.rows)
        wrapper.plan(pages.starts, pages.indices, pages.last, *sizes, window_left=p.window_left, **types)
        return wrapper

    def queries(workspace, pages):
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        begin = torch.arange(p.batch + 1, dtype=torch.int32, device="cuda") * p.query_len
        sizes = (p.heads, p.kv_heads, p.head_dim, pages.rows)
        options = {"causal": p.is_causal, "window_left": p.window_left, **types}
        wrapper.plan(begin, pages.starts, pages.indices, pages.last, *sizes, **options)
        return wrapper

    if p.query_len > 1:
        return [("FlashAttention-2", variant(queries))]
    return [("tensor cores", variant(one_query))]


def compile_flashinfer(problems, element_of, library):
    """FlashInfer compiles a kernel when it is first planned, about 20 seconds each: all that the problems need at once. What fails
    fails again, and is reported, where it is measured."""
    kinds = {}
    for problem in problems:
        kind = (problem.element, problem.head_dim, problem.value_dim, problem.window_left >= 0, problem.query_len > 1)
        if kind not in kinds or problem.bytes() < kinds[kind].bytes():
            kinds[kind] = problem

    def compile_for(problem):
        try:
            variants = flashinfer(Cache(problem, element_of(problem), 1), library)
        except Exception:
            return
        for _, prepare in variants:
            with contextlib.suppress(Exception):
                prepare()

    with concurrent.futures.ThreadPoolExecutor(max(1, len(kinds))) as executor:
        list(executor.map(compile_for, kinds.values()))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


if triton:

    @triton.jit
    def read_everything(k, v, sums, blocks, WORDS: tl.constexpr):
        cta = tl.program_id(0)
        at = tl.arange(0, WORDS)
        total = tl.zeros([WORDS], tl.int64)
        for block in range(cta, blocks, tl.num_programs(0)):
            total += tl.load(k + block * WORDS + at)
            total += tl.load(v + block * WORDS + at)
        # A sum that is not stored would not be computed, and its terms not read.
        tl.store(sums + cta, tl.sum(total))

    @triton.jit
    def read_blocks(k, v, sums, starts, blocks, WORDS: tl.constexpr):
        cta = tl.program_id(0)
        at = tl.arange(0, WORDS)
        total = tl.zeros([WORDS], tl.int64)
        for block in range(cta, blocks, tl.num_programs(0)):
            # In words of 8 bytes; a multiple of 16, so that loads are of 16 bytes.
            start = tl.multiple_of(tl.load(starts + block), 16)
            total += tl.load(k + start + at)
            total += tl.load(v + start + at)
        tl.store(sums + cta, tl.sum(total))


def words_to_read(cache, whole):
    """Of each set of inputs, the words of 8 bytes from the first key on and those from the first value on. Of one tensor that is read from end
    to end, its halves."""

    def words(tensors):
        return [tensor.view(-1).view(torch.int64) for tensor in tensors]

    if cache.both is None:
        return words(cache.k), words(cache.v)
    if whole:
        return zip(*(both.chunk(2) for both in words(cache.both)))
    return words(cache.both), [both[cache.problem.unit_words :] for both in words(cache.both)]


def read(cache):
    """A kernel that only reads the keys and values that some query sees: the least time there is."""
    p = cache.problem
    if p.head_dim != p.value_dim:
        raise RuntimeError("keys and values of different head sizes have no places in common")
    # A dense cache that is read from end to end needs no list of places.
    whole = p.page_rows is None and all(span == (0, p.key_len) for span in p.read_ranges())
    k, v = words_to_read(cache, whole)
    if not triton:

        def sums():
            if not whole:
                raise RuntimeError("without Triton, only a dense cache is read")
            return lambda i: (k[i].sum(), v[i].sum())

        return [("torch.sum", sums)]

    table = cache.table.tolist() if cache.table is not None else None
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count

    # A cache of short pages has 100,000 blocks and more.
    @functools.cache
    def starts_of(words):
        return torch.tensor(p.read_starts(table, words), dtype=torch.int64, device="cuda")

    def variant(words, warps, per_multiprocessor):
        def prepare():
            starts = None
            if not whole:
                starts = starts_of(words)
            elif k[0].numel() % words:
                raise RuntimeError(f"the cache is no multiple of {words} words")
            blocks = k[0].numel() // words if whole else len(starts)
            ctas = min(blocks, per_multiprocessor * multiprocessors)
            sums = torch.empty(ctas, device="cuda", dtype=torch.int64)
            if whole:
                return lambda i: read_everything[(ctas,)](k[i], v[i], sums, blocks, words, num_warps=warps)
            return lambda i: read_blocks[(ctas,)](k[i], v[i], sums, starts, blocks, words, num_warps=warps)

        return prepare

    return [
        (f"{words} words, {warps} warps, {ctas} CTAs an SM", variant(words, warps, ctas))
        for words in (1024, 2048, 4096)
        for warps in (4, 8)
        for ctas in (1, 2, 4, 8, 16)
    ]
