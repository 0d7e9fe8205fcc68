"""Triton's interpreter, for tests of kernels: a process of its own for each file, and what Triton 3.6 needs mended.

Triton reads TRITON_INTERPRET where it is imported, and another test may have imported it without: so a test file of
kernels, run as a program, computes all its cases and writes what was found, and its tests compare.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def run(file: Path, what: str, folder: Path, **environment: str) -> dict[str, np.ndarray]:
    """What the program `file what path` has written there, with `environment` set."""
    pytest.importorskip("triton")
    path = folder / f"{what}.npz"
    # A cache of its own, as what another version has compiled proves nothing.
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    variables = {**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder), **environment}
    command = [sys.executable, file, what, path]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(path) as arrays:
        return dict(arrays)


def mend() -> None:
    """Triton 3.6 calls int() of arrays of one number, which NumPy has refused since 2.4, and multiplies the bits of
    bfloat16 as if they were integers.
    """
    from triton import language as tl
    from triton.runtime import interpreter

    patch, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda value: int(value.handle.data.item()))

    def widened(one):
        if one.dtype.scalar != tl.bfloat16:
            return one
        return interpreter.TensorHandle((one.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    interpreter._patch_lang_tensor = patched
    interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, widened(a), widened(b), *rest)
