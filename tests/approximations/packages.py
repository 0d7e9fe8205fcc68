"""Numbers of the packages performer-pytorch and linformer, for test_packages.py, which runs without them.

Both want other packages that are not needed here, so install them without, into a folder of their own, and run (with
Python 3.11, because performer-pytorch imports distutils):

    pip install --no-deps --target FOLDER performer-pytorch linformer einops axial-positional-embedding \\
        local-attention hyper-connections
    PYTHONPATH=FOLDER python tests/approximations/packages.py

Inputs, weights and outputs go to packages.safetensors, all computed in float64 from float32 numbers and stored as
float32.
"""

from functools import partial
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import save_file

FILE = Path(__file__).with_name("packages.safetensors")


def drawn(*shape, seed, size=1.0):
    return (size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).double()


def in_float32(module):
    """Weights that float32 can hold, in float64."""
    return module.float().double().eval()


def linformer():
    """Self- and cross-attention, full and short inputs, with a matrix for keys and one for values, and with one."""
    from linformer import LinformerSelfAttention

    found = {"x": drawn(1, 9, 12, seed=0), "source": drawn(1, 7, 12, seed=1)}
    for name, shared in (("headwise", False), ("key-value", True)):
        torch.manual_seed(2)
        module = in_float32(LinformerSelfAttention(12, seq_len=9, k=3, heads=4, share_kv=shared))
        found |= {f"{name}.{key}": one for key, one in module.state_dict().items()}
        found[f"{name}.full"] = module(found["x"])
        found[f"{name}.short"] = module(found["x"][:, :5])
        found[f"{name}.cross"] = module(found["x"], found["source"])
    return found


def performer():
    """The attention and the module around it, over all keys; and over the past, in two chunks of ours, at eps=0."""
    import performer_pytorch.performer_pytorch as package

    q, k, v = (drawn(1, 2, n, w, seed=seed) for seed, (n, w) in enumerate(((5, 8), (7, 8), (7, 6))))
    torch.manual_seed(3)
    fast = in_float32(package.FastAttention(8, nb_features=12))
    found = {"q": q, "k": k, "v": v, "features": fast.projection_matrix, "output": fast(q, k, v)}

    past = [drawn(1, 1, 140, 4, seed=seed) for seed in range(5, 8)]
    past[1][:, :, 131:] *= 3  # the keys' stabilizer rises in the second chunk
    causal = in_float32(package.FastAttention(4, nb_features=6, causal=True))
    causal.causal_linear_fn = partial(causal.causal_linear_fn, eps=0.0)
    with patch.object(package, "softmax_kernel", partial(package.softmax_kernel, eps=0.0)):
        found["causal.output"] = causal(*past)
    found |= {f"causal.{name}": one for name, one in zip("qkv", past, strict=True)}
    found["causal.features"] = causal.projection_matrix

    module = in_float32(package.SelfAttention(12, heads=3, dim_head=4, nb_features=10, qkv_bias=True))
    found |= {f"module.{key}": one for key, one in module.state_dict().items()}
    found["module.x"] = drawn(2, 6, 12, seed=9)
    found["module.output"] = module(found["module.x"])
    return found


def main():
    found = {f"linformer.{name}": one for name, one in linformer().items()}
    found |= {f"performer.{name}": one for name, one in performer().items()}
    versions = {name: version(name) for name in ("performer-pytorch", "linformer", "torch")}
    save_file({name: one.detach().float().contiguous() for name, one in found.items()}, FILE, versions)


if __name__ == "__main__":
    main()
