"""What is compiled when it is first used, minutes of it: compiled in advance, while parts run that need none of it."""

import concurrent.futures
import copy
import os

from host import LIMITS, ON, last_lines, ptx, run, warptile
from problems import DECODE, PROGRAM, files, of_sequences, shapes

# Peers that compile, and which of them each part uses that measures peers.
COMPILED = ("fa4", "flashinfer")
USES = {"errors": ("fa4",), "peers": ("fa4",), "decode": COMPILED}

# Parts that launch images of PTX.
LAUNCH_PTX = ("launches", "tile", "acceptance", "tests")


class Ptx:
    """The images of PTX, compiled by the driver in the background, which keeps them on disk: several processes that begin at once would
    each compile all of them."""

    def __init__(self, evidence):
        def compile_all(family, target):
            own = copy.copy(evidence)
            own.failures = []
            arguments = ["verify", *ON, "--each-kernel", "--kernel", family, "--target", target, "--threads", 2]
            warptile(own, f"verify {family} {target}", arguments, LIMITS["verify"])
            return own.failures

        of_ptx = ptx(evidence)
        executor = concurrent.futures.ThreadPoolExecutor(max(1, len(of_ptx)))
        self.under_way = [executor.submit(compile_all, family, target) for family, target in of_ptx]

    def wait(self, evidence):
        """Waits until all are compiled. What failed is a failure of the part that waits first."""
        for done in self.under_way:
            evidence.failures += done.result()
            done.result().clear()


class Compiled:
    """FlashAttention-4's kernels and FlashInfer's, each compiled by a command of its own in the background. Both keep them on disk for
    the processes to come."""

    def __init__(self, evidence, names, cores):
        """`names`: the parts that will run; `cores`: those that compile."""
        options = evidence.options
        needed = {peer for name in names for peer in USES.get(name, ()) if getattr(options, peer) and not options.without_peers}
        problems = {"fa4": [*shapes(of_sequences()), *files(DECODE)], "flashinfer": files(DECODE)}
        # FlashInfer compiles for what it finds beside itself: it needs to know where FlashAttention-4 is.
        places = [word for peer in COMPILED if getattr(options, peer) for word in (f"--{peer}", getattr(options, peer))]
        # A second GPU, if there is one: nothing runs beside what is timed.
        variables = {} if evidence.second_gpu is None else {"CUDA_VISIBLE_DEVICES": evidence.second_gpu}

        def compile_all(peer):
            # Of this thread, and so of the processes that it starts.
            os.sched_setaffinity(0, cores)
            return run([*PROGRAM, *problems[peer], *places, "--peer", peer, "--compile"], LIMITS["compile"], variables)

        executor = concurrent.futures.ThreadPoolExecutor(len(COMPILED))
        self.all = {peer: executor.submit(compile_all, peer) for peer in COMPILED if peer in needed}
        # Those whose failure nobody has recorded yet.
        self.under_way = dict(self.all)

    def finished(self, peers):
        """Waits for what these need, however it ended."""
        concurrent.futures.wait([one for one in map(self.all.get, peers) if one])

    def wait(self, evidence, peers):
        """Waits for what these need, and fails for what could not be compiled: once, in the part that waits first."""
        for peer in peers:
            if peer in self.under_way:
                code, output = self.under_way.pop(peer).result()
                evidence.log(f"compile-{peer}", output)
                if code != 0:
                    evidence.fail(f"compiling {peer}: exit code {code}: {last_lines(output)}")
