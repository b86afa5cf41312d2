"""The peers: how each is found and called, and which version of it that is."""

import concurrent.futures
import contextlib
import ctypes
import hashlib
import importlib.metadata
import multiprocessing
import os
import pathlib
import site
import sys
from typing import Callable, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import cache_peers
import options as added
from problem import Problem

PEERS = ("fa2", "cudnn", "efficient", "default", "fa3", "fa3-deterministic", "fa4", "flashinfer", "read")

# Measured only if asked for by name: it is one of the others.
BY_NAME_ONLY = ("default",)

ELEMENTS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}

# Rows of FlashAttention-4's smallest tile. A problem of one tile is compiled for itself.
FA4_TILE = 128

# Processes that compile FlashAttention-4's variants, each takes seconds to import its compiler first.
FA4_COMPILERS = 8


class Peer(NamedTuple):
    """A kernel for whole sequences."""

    # From a problem and its q, k, v, [batch, length, heads, head size], to those that `call` takes: outside of what is measured.
    prepare: Callable
    # From a problem and its q, k, v to the output.
    call: Callable
    # True if the output has its heads before its rows.
    heads_first: bool
    # As above, for gradients: `prepare` takes the gradient of the output, too, and `call` gives those of q, k and v.
    gradients: "Peer | None" = None

    def of(self, problem):
        """The peer that computes what the problem asks for."""
        if not problem.backward:
            return self
        if self.gradients is None:
            raise RuntimeError("its gradients are not measured")
        return self.gradients


def inputs_of(problem):
    """q, k, v, and the gradient of the output if there are gradients, as [batch, length, heads, head size], normally distributed
    but for the queries' factor."""

    def tensor(length, heads, size):
        shape = (problem.batch, length, heads, size)
        return torch.randn(shape, device="cuda", dtype=ELEMENTS[problem.element])

    inputs = (
        tensor(problem.query_len, problem.heads, problem.head_dim) * problem.factor,
        tensor(problem.key_len, problem.kv_heads, problem.head_dim),
        tensor(problem.key_len, problem.kv_heads, problem.value_dim),
    )
    return (*inputs, tensor(problem.query_len, problem.heads, problem.value_dim)) if problem.backward else inputs


def sdpa_gradients(forward, backward):
    """Gradients by PyTorch's own operators, in the order in which autograd calls them: a graph can capture these."""

    def prepare(problem, q, k, v, d_out):
        if problem.heads != problem.kv_heads:
            raise RuntimeError("its gradients take no grouped heads")
        q, k, v, d_out = (tensor.transpose(1, 2) for tensor in (q, k, v, d_out))
        return q, k, v, d_out, forward(q, k, v, problem.mask == "causal")

    def call(problem, q, k, v, d_out, saved):
        return backward(d_out, q, k, v, saved, problem.mask == "causal")[:3]

    return Peer(prepare, call, heads_first=True)


def flash_gradients():
    aten = torch.ops.aten

    def backward(d_out, q, k, v, saved, causal):
        out, lse, *lengths, seed, offset, _ = saved
        return aten._scaled_dot_product_flash_attention_backward(d_out, q, k, v, out, lse, *lengths, 0.0, causal, seed, offset)

    return sdpa_gradients(lambda q, k, v, causal: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal), backward)


def cudnn_gradients():
    aten = torch.ops.aten

    def backward(d_out, q, k, v, saved, causal):
        out, lse, *lengths, seed, offset, _ = saved
        return aten._scaled_dot_product_cudnn_attention_backward(d_out, q, k, v, out, lse, seed, offset, None, *lengths, 0.0, causal)

    return sdpa_gradients(lambda q, k, v, causal: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal), backward)


def sdpa(backend=None, gradients=None):
    """A peer through PyTorch's dispatcher, held to one backend if one is given."""

    def prepare(problem, q, k, v, tensors=None):
        if problem.softcap:
            raise RuntimeError("PyTorch bounds no scores")
        mask = added.as_mask(problem, tensors or added.of(problem))
        # PyTorch wants [batch, heads, length, head size]; as strides, without a copy.
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask

    def call(problem, q, k, v, mask):
        # A mask of numbers has the diagonal in it.
        causal = problem.mask == "causal" and mask is None
        with sdpa_kernel([backend]) if backend is not None else contextlib.nullcontext():
            return scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=problem.heads != problem.kv_heads
            )

    return Peer(prepare, call, heads_first=True, gradients=gradients)


def fa3_gradients(operators, deterministic):
    """FlashAttention-3's gradients, written to tensors that are there."""

    def prepare(problem, q, k, v, d_out):
        out, lse, *_ = operators.fwd(q, k, v, is_causal=problem.mask == "causal", num_splits=1)
        return q, k, v, d_out, out, lse, [torch.empty_like(one) for one in (q, k, v)]

    def call(problem, q, k, v, d_out, out, lse, gradients):
        operators.bwd(d_out, q, k, v, out, lse, *gradients, is_causal=problem.mask == "causal", deterministic=deterministic)
        return gradients

    return Peer(prepare, call, heads_first=False)


def fa4_gradients(folder):
    """FlashAttention-4's gradients, by the two functions that its autograd calls, written to tensors that are there."""
    flash_attention_4(folder)
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd

    def prepare(problem, q, k, v, d_out):
        out, lse, *_ = _flash_attn_fwd(q, k, v, causal=problem.is_causal, return_lse=True)
        return q, k, v, d_out, out, lse, [torch.empty_like(one) for one in (q, k, v)]

    def call(problem, q, k, v, d_out, out, lse, gradients):
        dq, dk, dv = gradients
        _flash_attn_bwd(q, k, v, out, d_out, lse, causal=problem.is_causal, dq=dq, dk=dk, dv=dv)
        return gradients

    return Peer(prepare, call, heads_first=False)


def only_gradients(gradients):
    """A peer that has nothing to say of outputs."""

    def refuse(problem, q, k, v):
        raise RuntimeError("only its gradients are measured")

    return Peer(refuse, refuse, heads_first=False, gradients=gradients)


def flash_attention(name, attention, gradients=None):
    """A release of FlashAttention as a peer, by a function from q, k, v, causal to the output."""

    def prepare(problem, q, k, v, tensors=None):
        if problem.element == "f32":
            raise RuntimeError(f"{name} takes no f32")
        if problem.options:
            raise RuntimeError(f"{name} is measured without options")
        return q, k, v

    def call(problem, q, k, v):
        return attention(q, k, v, problem.mask == "causal")

    return Peer(prepare, call, heads_first=False, gradients=gradients)


def fa3_operators(library):
    """FlashAttention-3's operators: those of a library, or of the package that is installed."""
    if library:
        runtime = pathlib.Path(library).with_name("libcudart.so.12")
        if runtime.exists():
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(library)
    else:
        import flash_attn_interface  # noqa: F401 (it registers them)
    return torch.ops.flash_attn_3


def flash_attention_3(library):
    """FlashAttention-3's own interface: q, k, v, causal to the output."""
    if library:
        operator = fa3_operators(library).fwd
        return lambda q, k, v, causal: operator(q, k, v, is_causal=causal, num_splits=1)[0]
    try:
        from flash_attn_interface import flash_attn_func
    except ImportError:
        from fa3_fwd_interface import flash_attn_func
    return lambda q, k, v, causal: output_of(flash_attn_func(q, k, v, causal=causal))


def flash_attention_4(folder):
    """FlashAttention-4's own interface. It compiles a variant when it is first called, and keeps it on disk for the next process."""
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    if folder:
        site.addsitedir(folder)
    from flash_attn.cute import flash_attn_func

    return lambda q, k, v, causal: output_of(flash_attn_func(q, k, v, causal=causal))


def output_of(result):
    """Some releases return the lse, too."""
    return result[0] if isinstance(result, tuple) else result


def compile_fa4(folder, problems):
    """Compiles the variants that the problems need, several at a time, to the disk. What fails fails again, and is reported, where it is
    measured."""
    kinds = {}
    for problem in problems:
        if problem.element == "f32" or problem.page_rows is not None or problem.lengths is not None or problem.window_left >= 0:
            continue
        sizes = (problem.head_dim, problem.value_dim, problem.heads // problem.kv_heads)
        kind = (problem.element, *sizes, problem.is_causal, problem.query_len <= FA4_TILE, problem.backward)
        if kind not in kinds or problem.bytes() < kinds[kind].bytes():
            kinds[kind] = problem
    lines = [problem.line for problem in kinds.values()]
    workers = max(1, min(FA4_COMPILERS, len(os.sched_getaffinity(0)) // 2, len(lines)))
    # A process with a GPU cannot be forked.
    processes = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, processes) as executor:
        for line, failure in executor.map(call_fa4, [folder] * len(lines), lines):
            if failure:
                print(f"fa4: not compiled for {line}: {failure}", file=sys.stderr, flush=True)


def call_fa4(folder, line):
    """Calls FlashAttention-4 once; the problem, and why that failed."""
    problem = Problem(line)
    try:
        if problem.backward:
            gradients = fa4_gradients(folder)
            gradients.call(problem, *gradients.prepare(problem, *inputs_of(problem)))
        else:
            flash_attention_4(folder)(*inputs_of(problem), problem.is_causal)
        torch.cuda.synchronize()
    except Exception as error:  # whatever a package raises, the others go on
        return line, first_line(error)
    torch.cuda.empty_cache()
    return line, None


def find_flashinfer(folder, fa4_folder):
    """FlashInfer's package, after FlashAttention-4's if that is there. Both bring `tvm_ffi`, of which a process has the first, and
    FlashInfer compiles everything anew against another one: whoever compiles and whoever measures must have the same."""
    with contextlib.suppress(Exception):
        flash_attention_4(fa4_folder)
    if folder:
        sys.path.insert(0, folder)
        major, minor = torch.cuda.get_device_capability()
        os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", f"{major}.{minor}" + ("a" if major >= 9 else ""))
    import flashinfer

    return flashinfer


def compiled_flashinfer(options, problems):
    """FlashInfer's package, with what it needs for the problems compiled."""
    library = find_flashinfer(options.flashinfer, options.fa4)
    cache_peers.compile_flashinfer(problems, lambda problem: ELEMENTS[problem.element], library)
    return library


def of_sequences(options, problems):
    """Peers for whole sequences, by name."""

    def fa3():
        attention = flash_attention_3(options.fa3)
        return flash_attention("FlashAttention-3", attention, fa3_gradients(torch.ops.flash_attn_3, deterministic=False))

    backward = any(problem.backward for problem in problems)

    def fa4():
        return flash_attention("FlashAttention-4", flash_attention_4(options.fa4), fa4_gradients(options.fa4) if backward else None)

    makers = {
        "fa2": lambda: sdpa(SDPBackend.FLASH_ATTENTION, flash_gradients()),
        "cudnn": lambda: sdpa(SDPBackend.CUDNN_ATTENTION, cudnn_gradients()),
        "efficient": lambda: sdpa(SDPBackend.EFFICIENT_ATTENTION),
        "default": sdpa,
        "fa3": fa3,
        "fa4": fa4,
    }
    if backward:
        makers["fa3-deterministic"] = lambda: only_gradients(fa3_gradients(fa3_operators(options.fa3), deterministic=True))
    return found_of(makers, options)


def on_caches(options, problems):
    """Contestants for queries on a cache, by name: from a cache to the variants."""

    def flashinfer():
        library = compiled_flashinfer(options, problems)
        return lambda cache: cache_peers.flashinfer(cache, library)

    def fa3():
        operators = fa3_operators(options.fa3)
        return lambda cache: cache_peers.fa3(cache, operators)

    def fa4():
        attention = flash_attention_4(options.fa4)
        return lambda cache: cache_peers.fa4(cache, attention)

    makers = {
        "fa2": lambda: cache_peers.fa2,
        "cudnn": lambda: cache_peers.cudnn,
        "efficient": lambda: cache_peers.efficient,
        "fa3": fa3,
        "fa4": fa4,
        "flashinfer": flashinfer,
        "read": lambda: cache_peers.read,
    }
    return found_of(makers, options)


def named(options):
    """The peers that options name a place of. Ends the program if one of them is not there."""
    makers = {
        "fa3": lambda: fa3_operators(options.fa3),
        "fa4": lambda: flash_attention_4(options.fa4),
        "flashinfer": lambda: find_flashinfer(options.flashinfer, options.fa4),
    }
    return found_of({name: make for name, make in makers.items() if getattr(options, name)}, options)


def found_of(makers, options):
    """The contestants that are there."""
    found, wanted = {}, options.peer
    for name, make in makers.items():
        if name not in wanted if wanted else name in BY_NAME_ONLY:
            continue
        try:
            found[name] = make()
        except Exception as error:  # a broken package raises what it likes
            print(f"{name}: not installed ({error})", file=sys.stderr)
            # A peer that was named, or whose place was named, must be there.
            if wanted or getattr(options, name, None):
                sys.exit(1)
    return found


def versions(found, options):
    """Of PyTorch, which has FlashAttention-2 and the memory-efficient kernel, of cuDNN, and of the peers that were found."""

    def of_package(*names):
        for name in names:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                return importlib.metadata.version(name)
        return "unknown"

    listed = {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
    if "fa3" in found:
        # A library does not say its version.
        of_file = lambda: "library " + hashlib.sha256(pathlib.Path(options.fa3).read_bytes()).hexdigest()[:12]  # noqa: E731
        listed["fa3"] = of_file() if options.fa3 else of_package("flash-attn-3", "flash_attn_3", "fa3-fwd")
    if "fa4" in found:
        listed["fa4"] = of_package("flash-attn-4")
    if "flashinfer" in found:
        listed["flashinfer"] = of_package("flashinfer-python")
    return listed


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def not_for(name, problem, error):
    """Says why a contestant has no row."""
    print(f"{name}: not for {problem.line}: {first_line(error)}", file=sys.stderr, flush=True)
