"""Names of torch functions by their effect on scores, weights and attention outputs."""

__all__ = [
    "ADDED",
    "CASTS",
    "CHAINS",
    "DROPOUTS",
    "JOINS",
    "KNOWN",
    "LINEAR",
    "LOOKUPS",
    "MIXES",
    "MULTIPLIES",
    "NORMS",
    "OUTER",
    "PARTS",
    "PERMUTES",
    "PRODUCTS",
    "REARRANGES",
    "RECURRENT",
    "REDUCES",
    "REWEIGHTS",
    "ROWWISE",
    "SHAPES",
    "SOFTMAXES",
    "SPREADS",
    "SUBTRACTS",
    "VIEWS",
    "WRITES",
]

ADDED = {f"{one}{end}" for one in ("baddbmm", "addmm", "addbmm", "addmv") for end in ("", "_")} | {"_sparse_addmm"}
CHAINS = {"linalg_multi_dot", "chain_matmul"}
ROWWISE = {"linalg_vecdot", "vecdot", "cosine_similarity"}
PRODUCTS = (
    ADDED | CHAINS | ROWWISE | {"matmul", "__matmul__", "__rmatmul__", "__imatmul__", "linalg_matmul", "bmm", "mm"}
)
PRODUCTS |= {"mv", "dot", "vdot", "inner", "tensordot", "einsum", "cdist", "_sparse_mm", "smm", "hspmm", "spmm", "dsmm"}
LINEAR = {"linear", "bilinear", "embedding", "conv1d", "conv2d", "conv3d"}
LINEAR |= {f"conv_transpose{n}d" for n in (1, 2, 3)}
NORMS = {"layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"}
PERMUTES = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint", "__get__"}
SHAPES = PERMUTES | {
    *("view", "reshape", "contiguous", "unsqueeze", "squeeze", "flatten", "unflatten", "expand", "expand_as"),
    *("view_as", "reshape_as", "clone", "detach", "__getitem__", "narrow", "to", "type", "type_as", "float", "half"),
    *("bfloat16", "double", "select", "slice", "_unsafe_view", "_to_copy"),
}
CASTS = {"to", "type", "type_as", "float", "half", "bfloat16", "double", "clone", "detach", "_to_copy"}
CASTS |= {"to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc", "to_dense"}
VIEWS = {"view", "reshape", "unflatten"}
REARRANGES = {"repeat", "pad", "as_strided", "roll", "repeat_interleave", "gather", "take_along_dim", "index_select"}
REARRANGES |= {"unfold", "fold", "interpolate", "flip", "sort", "topk", "scatter", "scatter_", "scatter_add", "tile"}
DROPOUTS = {"dropout", "dropout_", "alpha_dropout", "feature_dropout", "native_dropout"}
MULTIPLIES = {"mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__", "addcmul", "addcmul_"}
# Functions that change weights after the softmax: the changed tensor replaces the weights, since it is the one used.
REWEIGHTS = {"masked_fill", "masked_fill_", "nan_to_num", "nan_to_num_", "where", "mul", "__mul__", "__rmul__", "mul_"}
REWEIGHTS |= {"div", "__truediv__", "div_", "__imul__", "__itruediv__", "multiply", "divide", "true_divide", "clamp"}
REWEIGHTS |= {"clamp_min", "relu", "pow", "__pow__", "sqrt", "square", "threshold", "normalize"}
SUBTRACTS = {"sub", "subtract", "__sub__", "__rsub__", "rsub", "sub_", "__isub__"}
# Functions whose result may be negative, unlike weights.
MIXES = {"add", "__add__", "__radd__", "add_", "__iadd__", "neg", "__neg__", "lerp"} | SUBTRACTS
SPREADS = MULTIPLIES | {"add", "__add__", "__radd__"} | {"sub", "subtract", "__sub__", "__rsub__", "rsub"}
PARTS = {"chunk", "split", "unbind", "tensor_split", "hsplit", "vsplit", "dsplit", "split_with_sizes", "unsafe_split"}
PARTS |= {"unsafe_chunk", "unsafe_split_with_sizes"}
JOINS = {"stack", "cat", "concat", "concatenate", "hstack", "vstack"}
WRITES = {"__setitem__", "index_copy", "index_copy_", "copy_", "scatter", "scatter_", "index_put_", "masked_scatter"}
WRITES |= {"index_add", "index_add_", "scatter_add_", "scatter_reduce", "scatter_reduce_"}
REDUCES = {"sum", "mean", "amax", "amin", "max", "min", "prod", "logsumexp", "norm", "vector_norm", "var", "std"}
REDUCES |= {"median", "nanmean", "nansum", "linalg_norm", "linalg_vector_norm"}
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
SOFTMAXES = {"softmax", "special_softmax", "_safe_softmax", "softmin", "gumbel_softmax", "softmax_"}
SOFTMAXES |= {"_softmax", "_masked_softmax", "_sparse_softmax"}
LOOKUPS = {"embedding", "__getitem__", "index_select", "one_hot"}  # of rows of a table
OUTER = {"outer", "ger", "cartesian_prod", "meshgrid", "broadcast_tensors", "polar", "complex"}
CARRIES_OUTPUT = SHAPES | PARTS | JOINS | {"mul", "__mul__", "__rmul__", "mul_", "div", "__truediv__", "multiply"}
# Functions with a known effect on two activations; any other function may be a product of both.
KNOWN = (
    SHAPES | CASTS | REARRANGES | DROPOUTS | REWEIGHTS | MIXES | MULTIPLIES | PARTS | JOINS | WRITES | REDUCES | NORMS
)
KNOWN |= RECURRENT | SOFTMAXES | OUTER
