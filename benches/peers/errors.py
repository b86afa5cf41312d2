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

from contestants import inputs_of, not_for

# Scores that the float64 reference holds at once: 1 GiB of them.
REFERENCE_SCORES = 1 << 27

# Problems whose errors are computed at a time. Most of what one takes is the program's start and files.
PROBLEMS_UNDER_WAY = 6


def reference(problem, q, k, v):
    """The output in float64, [batch, length, heads, head size], computed in pieces on the GPU."""
    group = problem.heads // problem.kv_heads

    def heads_first(tensor):
        """[batch * heads, length, head size]"""
        return tensor.transpose(1, 2).reshape(-1, tensor.shape[1], tensor.shape[3])

    q = heads_first(q)
    k, v = (heads_first(tensor.repeat_interleave(group, dim=2)) for tensor in (k, v))
    output = torch.empty((*q.shape[:2], problem.value_dim), dtype=torch.float64, device=q.device)
    rows = min(problem.query_len, 2048)
    heads = max(1, REFERENCE_SCORES // max(1, rows * problem.key_len))
    keys = torch.arange(problem.key_len, device=q.device)
    for head in range(0, q.shape[0], heads):
        of_heads = slice(head, head + heads)
        k_piece, v_piece = k[of_heads].double(), v[of_heads].double()
        for row in range(0, problem.query_len, rows):
            of_rows = slice(row, row + rows)
            scores = torch.bmm(q[of_heads, of_rows].double(), k_piece.transpose(1, 2)) / math.sqrt(problem.head_dim)
            if problem.mask == "causal":
                last = torch.arange(problem.query_len, device=q.device)[of_rows, None]
                scores.masked_fill_(keys > last, -math.inf)
            output[of_heads, of_rows] = torch.bmm(torch.softmax(scores, dim=-1), v_piece)
    output = output.view(problem.batch, problem.heads, problem.query_len, problem.value_dim)
    return output.transpose(1, 2)


def safetensors(path, tensors):
    """Writes tensors to a safetensors file; by hand, so that no package is needed."""
    names = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
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


def computed_by_warptile(program, problem, q, k, v):
    """The output of `warptile run`, and the kernel that it names."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        inputs, output = os.path.join(folder, "qkv"), os.path.join(folder, "out")
        safetensors(inputs, {"q": q, "k": k, "v": v})
        command = [program, "run", inputs, "-o", output, "--device", "cuda:0", "--once"]
        command += ["--causal"] if problem.mask == "causal" else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        kernel = re.search(r"^ran +(\S+) on cuda:", done.stdout, re.MULTILINE)
        return tensor_of(output, "out", q.dtype, (*q.shape[:3], v.shape[3])), kernel[1] if kernel else ""


class Errors:
    """How far each contestant's output of a problem is from float64, over all seeds. The program `warptile` computes meanwhile, in
    processes of its own: nothing is timed here."""

    def __init__(self, problem, found, options, processes):
        self.problem, self.query_scale, self.seeds = problem, options.query_scale, options.seeds
        self.squares, self.largest, self.kernels, self.values = {}, {}, {}, 0
        self.ours = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            q, k, v = inputs_of(problem)
            q = q * options.query_scale
            if options.program:
                computed = processes.submit(computed_by_warptile, options.program, problem, q, k, v)
            exact = reference(problem, q, k, v)
            self.values += exact.numel()
            if options.program:
                self.ours.append((computed, exact))
            for name, peer in found.items():
                try:
                    output = peer.call(problem, *peer.prepare(problem, q, k, v))
                except Exception as error:  # whatever a package raises, the others go on
                    torch.cuda.synchronize()
                    not_for(name, problem, error)
                    continue
                self.judge(name, output.transpose(1, 2) if peer.heads_first else output, name, exact)

    def judge(self, name, output, kernel, exact):
        difference = output.double() - exact
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
