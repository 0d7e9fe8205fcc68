"""PyTorch's operators by what they do with what is known of their inputs: about 45 rules for all of them."""

from dataclasses import dataclass
from typing import Any

from regard.torch_private import OpOverload, has_kernel

__all__ = ["ADDED", "NAMES_OF_RULES", "PRODUCTS", "Operator", "operator_of"]

PRODUCTS = {"mm", "bmm", "mv", "dot", "vdot"}
ADDED = {"addmm", "baddbmm", "addmv", "addbmm"}  # products that are added to their first argument

_RULES = {
    "product": PRODUCTS | ADDED | {"_sparse_mm", "_sparse_addmm", "_cdist_forward", "_euclidean_dist", "linear"},
    "convolution": {"convolution", "conv2d", "_convolution"},
    "softmax": {"_softmax", "softmax", "special_softmax", "_safe_softmax", "_masked_softmax", "_sparse_softmax"},
    "log_softmax": {"_log_softmax", "log_softmax", "special_log_softmax"},
    "exponential": {"exp", "exp2", "expm1", "special_exp2", "special_expm1", "pow"},
    "same": {"clone", "_to_copy", "contiguous", "lift_fresh", "_conj", "_to_sparse", "_to_dense", "resolve_conj"},
    "view": {"view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "_reshape_copy", "unflatten", "flatten"},
    "permute": {"permute", "transpose", "t", "mT", "numpy_T", "mH", "adjoint", "movedim", "swapaxes"},
    "expand": {"expand"},
    "unsqueeze": {"unsqueeze"},
    "squeeze": {"squeeze"},
    "select": {"select"},
    "slice": {"slice", "narrow"},
    "parts": {"split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "unsafe_chunk", "tensor_split"},
    "numbers": {"view_as_real", "view_as_complex"},
    "concatenate": {"cat"},
    "stack": {"stack"},
    "reduce": {
        *("sum", "mean", "amax", "amin", "max", "min", "prod", "logsumexp", "linalg_vector_norm", "norm", "var", "std"),
        *("nansum", "median"),
    },
    "norm": {
        *("native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm", "rms_norm", "layer_norm"),
        *("_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm"),
    },
    "embed": {"embedding"},
    "one_hot": {"one_hot"},
    "pick": {"index", "index_select", "gather", "take_along_dim"},
    "rearrange": {
        *("flip", "roll", "constant_pad_nd", "unfold", "as_strided", "sort", "topk", "im2col", "col2im", "take"),
        *("reflection_pad1d", "upsample_nearest2d", "upsample_bilinear2d"),
    },
    "repeat": {"repeat"},
    "sample": {"grid_sampler_2d", "grid_sampler_3d", "grid_sampler", "cudnn_grid_sampler"},
    "scatter": {
        *("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_put", "_index_put_impl"),
        *("masked_scatter", "slice_scatter", "select_scatter"),
    },
    "copy": {"copy"},
    "noise": {"bernoulli"},
    "dropout": {"native_dropout"},
    "recurrent": {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"},
    "nothing": {"detach", "alias", "empty_like", "zeros_like", "ones_like", "rand_like", "randn_like", "full_like",
                "new_zeros", "new_empty", "new_ones", "new_full", "empty_strided", "new_empty_strided", "zero", "fill"},
}  # fmt: skip
NAMES_OF_RULES = {name: rule for rule, names in _RULES.items() for name in names}


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator of PyTorch: its name without "_" at the end, and whether it writes its first argument."""

    name: str
    rule: str
    is_in_place: bool
    is_aten: bool
    is_composite: bool  # of others, which PyTorch calls one by one only where gradients are possible


def operator_of(func: Any) -> Operator:
    """Return what an operator is."""
    if not isinstance(func, OpOverload):
        return Operator(str(func), "elementwise", is_in_place=False, is_aten=False, is_composite=False)
    library, _, name = func._schema.name.partition("::")
    in_place = name.endswith("_") and not name.endswith("__")
    base = name.removesuffix("_") if in_place else name
    is_aten = library == "aten"
    rule = NAMES_OF_RULES.get(base, "elementwise") if is_aten else "elementwise"
    if base == "pow" and func._overloadname != "Scalar":  # else a number to the power of a tensor
        rule = "elementwise"
    try:
        composite = is_aten and has_kernel(func.name(), "CompositeImplicitAutograd")
    except RuntimeError:  # an operator of Python alone, as that which gives sizes
        return Operator(base, "nothing", is_in_place=False, is_aten=True, is_composite=False)
    return Operator(base, rule, in_place, is_aten, composite)
