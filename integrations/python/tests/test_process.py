"""Threads, the GIL and forked processes."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
import unittest

import numpy as np
import warptile
from reference import draw


def compute(seed):
    q = draw(seed, (1, 64, 4, 32))[0]
    return warptile.attention(q, q, q, causal=True)


class Process(unittest.TestCase):
    def test_other_threads_run_meanwhile(self):
        q = draw(1, (1, 4096, 8, 64))[0]
        turns, done = 0, threading.Event()

        def work():
            warptile.attention(q, q, q)
            done.set()

        worker = threading.Thread(target=work)
        worker.start()
        # With the GIL held, this thread would get no turn before the result is there.
        while not done.wait(0.001):
            turns += 1
        worker.join()
        self.assertGreater(turns, 3)

    def test_many_threads_at_once(self):
        expected = [compute(seed) for seed in range(4)]
        wrong = []

        def work(seed):
            for _ in range(20):
                if not np.array_equal(compute(seed), expected[seed]):
                    wrong.append(seed)

        workers = [threading.Thread(target=work, args=(seed % 4,)) for seed in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(wrong, [])

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_forked_processes_compute(self):
        expected = [compute(seed) for seed in range(4)]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            found = pool.map_async(compute, range(4)).get(timeout=300)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_spawned_processes_compute(self):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.map_async(compute, [3]).get(timeout=300)
        np.testing.assert_array_equal(found[0], compute(3))

    def test_importing_needs_nothing_else(self):
        program = "import sys, warptile; print(sorted({'numpy', 'torch'} & set(sys.modules)))"
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        self.assertEqual(found.stdout, "[]\n")

    def test_a_call_in_an_exiting_thread(self):
        results = []
        worker = threading.Thread(target=lambda: results.append(compute(1)))
        worker.start()
        worker.join()
        time.sleep(0.01)
        np.testing.assert_array_equal(results[0], compute(1))


if __name__ == "__main__":
    unittest.main()
