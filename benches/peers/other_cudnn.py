"""Another cuDNN under PyTorch than its own. A process has one, which the loader must know before PyTorch is there."""

import argparse
import os
import pathlib
import sys

LIBRARY = "libcudnn.so.9"

# The part that a folder may lack: kernels that were compiled ahead. Attention is compiled when it is first called.
COMPILED_AHEAD = "libcudnn_engines_precompiled.so.9"

# LD_PRELOAD as it was before, in a process that has been started again.
RESTARTED = "ATTENTION_PEERS_PRELOADED_BEFORE"


def restart_if_asked():
    """Starts the program again with the cuDNN of the folder that --cudnn names. Returns if there is no such option, and in the process
    that was started so."""
    arguments = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    arguments.add_argument("--cudnn")
    folder = arguments.parse_known_args()[0].cudnn
    if folder is None:
        return
    if RESTARTED in os.environ:
        # It is loaded. What this process starts needs no cuDNN.
        os.environ["LD_PRELOAD"] = os.environ.pop(RESTARTED)
        return
    folder = pathlib.Path(folder).resolve()
    if not (folder / LIBRARY).exists():
        sys.exit(f"--cudnn: {folder} has no {LIBRARY}")
    before = os.environ.get("LD_PRELOAD", "")
    others = os.environ.get("LD_LIBRARY_PATH")
    variables = {RESTARTED: before, "LD_PRELOAD": f"{folder / LIBRARY} {before}".strip()}
    variables["LD_LIBRARY_PATH"] = f"{folder}:{others}" if others else str(folder)
    if not (folder / COMPILED_AHEAD).exists():
        variables["CUDNN_LIB_CONFIG"] = "GRAPH_JIT_ONLY"
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | variables)
