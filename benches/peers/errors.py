"""How far each contestant's output is from float64, on the same inputs for all."""

import collections
import concurrent.futures
import ctypes
import json
import math
import os
import re
import struct
import subprocess
import tempfile

import torch

import options as added
from contestants import inputs_of, not_for

# Scores that the float64 reference holds at once: 1 GiB of them.
REFERENCE_SCORES = 1 << 27

# Problems whose errors are computed at a time. Most of what one takes is the program's start and files.
PROBLEMS_UNDER_WAY = 6


def with_options(problem, tensors, scores, heads, rows):
    """Scores of some heads, counted through the batch, with the options: those of one sequence at a time."""
    pieces, first = [], heads.start
    while first < min(heads.stop, problem.batch * problem.heads):
        entry, head = divmod(first, problem.heads)
        count = min(heads.stop - first, problem.heads - head)
        of_entry = {name: tensor[entry : entry + 1] if tensor.dim() == 4 and len(tensor) > 1 else tensor for name, tensor in tensors.items()}
        piece = scores[first - heads.start : first - heads.start + count][None]
        pieces.append(added.add(problem, of_entry, piece, slice(head, head + count), rows)[0])
        first += count
    return torch.cat(pieces)


def reference(problem, q, k, v, d_out=None, tensors=None):
    """The output in float64, or the gradients of q, k and v, each [batch, length, heads, head size], computed in pieces on the GPU."""
    group, scale = problem.heads // problem.kv_heads, 1 / math.sqrt(problem.head_dim)

    def heads_first(tensor):
        """[batch * heads, length, head size]"""
        return tensor.transpose(1, 2).reshape(-1, tensor.shape[1], tensor.shape[3])

    def rows_first(tensor):
        """The other way round."""
        return tensor.view(problem.batch, problem.heads, *tensor.shape[1:]).transpose(1, 2)

    def zeros(length, size):
        return torch.zeros((problem.batch * problem.heads, length, size), dtype=torch.float64, device=q.device)

    if d_out is None:
        results = [zeros(problem.query_len, problem.value_dim)]
    else:
        sizes = (problem.head_dim, problem.head_dim, problem.value_dim)
        results = [zeros(length, size) for length, size in zip((problem.query_len, problem.key_len, problem.key_len), sizes)]
        d_out = heads_first(d_out)
    q = heads_first(q)
    k, v = (heads_first(tensor.repeat_interleave(group, dim=2)) for tensor in (k, v))
    rows = min(problem.query_len, 2048)
    heads = max(1, REFERENCE_SCORES // max(1, rows * problem.key_len))
    keys = torch.arange(problem.key_len, device=q.device)
    for head in range(0, q.shape[0], heads):
        of_heads = slice(head, head + heads)
        k_piece, v_piece = k[of_heads].double(), v[of_heads].double()
        for row in range(0, problem.query_len, rows):
            of_rows = slice(row, row + rows)
            q_piece = q[of_heads, of_rows].double()
            scores = torch.bmm(q_piece, k_piece.transpose(1, 2)) * scale
            if problem.options:
                scores = with_options(problem, tensors, scores, of_heads, of_rows)
            if problem.mask == "causal":
                last = torch.arange(problem.query_len, device=q.device)[of_rows, None]
                scores.masked_fill_(keys > last, -math.inf)
            weights = torch.softmax(scores, dim=-1)
            del scores
            out = torch.bmm(weights, v_piece)
            if d_out is None:
                results[0][of_heads, of_rows] = out
                continue
            d_piece = d_out[of_heads, of_rows].double()
            results[2][of_heads] += torch.bmm(weights.transpose(1, 2), d_piece)
            d_scores = torch.bmm(d_piece, v_piece.transpose(1, 2))
            d_scores -= (out * d_piece).sum(dim=-1, keepdim=True)
            d_scores *= weights * scale
            results[0][of_heads, of_rows] = torch.bmm(d_scores, k_piece)
            results[1][of_heads] += torch.bmm(d_scores.transpose(1, 2), q_piece)
    results = [rows_first(result) for result in results]
    # Query heads that share a key/value head have its gradient together.
    sums = [result.unflatten(2, (-1, group)).sum(dim=3) for result in results[1:]]
    return results[:1] + sums


def safetensors(path, tensors):
    """Writes tensors to a safetensors file; by hand, so that no package is needed."""
    names = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.bool: "BOOL"}
    header, end, parts = {}, 0, []
    for name, tensor in tensors.items():
        on_host = tensor.contiguous().cpu()
        data = ctypes.string_at(on_host.data_ptr(), on_host.numel() * on_host.element_size())
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)


def tensor_of(path, name, element, shape):
    """A tensor of a safetensors file, on the GPU."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        begin, end = header[name]["data_offsets"]
        file.seek(start + begin)
        data = bytearray(file.read(end - begin))
    return torch.frombuffer(data, dtype=element).view(shape).cuda()


def computed_by_warptile(program, problem, inputs, tensors):
    """The results of `warptile run`, and the kernel that it names."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path, output = os.path.join(folder, "qkv"), os.path.join(folder, "out")
        safetensors(path, {**dict(zip(("q", "k", "v", "d_out"), inputs)), **tensors})
        command = [program, "run", path, "-o", output, "--device", "cuda:0", "--once"]
        command += ["--causal"] if problem.mask == "causal" else []
        command += ["--softcap", str(problem.softcap)] if problem.softcap else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        kernel = re.search(rf"^ran +{'gradients by ' if problem.backward else ''}(\S+) on cuda:", done.stdout, re.MULTILINE)
        q, _, v = inputs[:3]
        shapes = {f"d{name}": tensor.shape for name, tensor in zip("qkv", inputs)} if problem.backward else {"out": (*q.shape[:3], v.shape[3])}
        return [tensor_of(output, name, q.dtype, shape) for name, shape in shapes.items()], kernel[1] if kernel else ""


class Errors:
    """How far each contestant's output of a problem is from float64, over all seeds. The program `warptile` computes meanwhile, in
    processes of its own: nothing is timed here."""

    def __init__(self, problem, found, options, processes):
        self.problem, self.query_scale, self.seeds = problem, options.query_scale, options.seeds
        self.squares, self.largest, self.kernels, self.values = {}, {}, {}, 0
        self.ours = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            q, *others = inputs_of(problem)
            inputs = (q * options.query_scale, *others)
            tensors = added.of(problem)
            if options.program:
                computed = processes.submit(computed_by_warptile, options.program, problem, inputs, tensors)
            exact = reference(problem, *inputs, tensors=tensors)
            self.values += sum(tensor.numel() for tensor in exact)
            if options.program:
                self.ours.append((computed, exact))
            for name, peer in found.items():
                try:
                    peer = peer.of(problem)
                    output = peer.call(problem, *peer.prepare(problem, *inputs, **({"tensors": tensors} if problem.options else {})))
                except Exception as error:  # whatever a package raises, the others go on
                    torch.cuda.synchronize()
                    not_for(name, problem, error)
                    continue
                results = output if problem.backward else (output,)
                self.judge(name, [one.transpose(1, 2) if peer.heads_first else one for one in results], name, exact)

    def judge(self, name, results, kernel, exact):
        for result, of_result in zip(results, exact):
            difference = result.double() - of_result
            self.squares[name] = self.squares.get(name, 0.0) + float((difference * difference).sum())
            # `max` would drop NaN in favour of a number or the other way round, by the order of its arguments.
            most = float(difference.abs().max())
            self.largest[name] = math.nan if math.isnan(most) else max(self.largest.get(name, 0.0), most)
        self.kernels[name] = kernel

    def rows(self, machine):
        """One row for each contestant. Waits for the program."""
        for computed, exact in self.ours:
            self.judge("warptile", *computed.result(), exact)
        return [
            {
                "backend": name,
                "kernel": self.kernels[name],
                **self.problem.row(),
                "query_scale": self.query_scale,
                "seeds": self.seeds,
                "error_rms": math.sqrt(self.squares[name] / self.values),
                "error_max": self.largest[name],
                **machine,
            }
            for name in self.squares
        ]


def of_problems(problems, found, options, machine):
    """The rows of each problem, in order, while the next ones are under way."""
    under_way = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(PROBLEMS_UNDER_WAY) as processes:
        for problem in problems:
            under_way.append(Errors(problem, found, options, processes))
            if len(under_way) == PROBLEMS_UNDER_WAY:
                yield under_way.popleft().rows(machine)
        while under_way:
            yield under_way.popleft().rows(machine)
