"""How torch's tensors are read and made: with a stand-in for torch, in a process of its own. gpu_check.py has the real one."""

import os
import pathlib
import subprocess
import sys
import unittest


class Torch(unittest.TestCase):
    def test_with_a_stand_in(self):
        environment = dict(os.environ)
        library = environment.get("WARPTILE_FAKE_CUDA")
        if library:
            environment["WARPTILE_LIBCUDA"] = library
        program = pathlib.Path(__file__).with_name("standin_torch.py")
        for arguments in ([], ["dlpack"]):
            done = subprocess.run([sys.executable, program, *arguments], env=environment, capture_output=True, text=True, timeout=300)
            self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
