"""Torch functions by name, sorted by what they do to scores, to weights and to what attention gave."""

__all__ = [
    "CARRIES_OUTPUT",
    "CASTS",
    "DROPOUTS",
    "JOINS",
    "LINEAR",
    "MIXES",
    "NORMS",
    "PARTS",
    "PERMUTES",
    "PRODUCTS",
    "REARRANGES",
    "RECURRENT",
    "REDUCES",
    "REWEIGHTS",
    "SHAPES",
    "SOFTMAXES",
    "SUBTRACTS",
    "WRITES",
]

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "addmm", "addbmm", "einsum", "cdist"}
LINEAR = {"linear", "bilinear", "embedding", "conv1d", "conv2d", "conv3d"}
LINEAR |= {f"conv_transpose{n}d" for n in (1, 2, 3)}
NORMS = {"layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"}
PERMUTES = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint", "__get__"}
SHAPES = PERMUTES | {
    *("view", "reshape", "contiguous", "unsqueeze", "squeeze", "flatten", "unflatten", "expand", "expand_as"),
    *("view_as", "reshape_as", "clone", "detach", "__getitem__", "narrow", "to", "type", "type_as", "float", "half"),
    *("bfloat16", "double", "select"),
}
CASTS = {"to", "type", "type_as", "float", "half", "bfloat16", "double", "clone", "detach"}
REARRANGES = {"repeat", "pad", "as_strided", "roll", "repeat_interleave", "gather", "take_along_dim", "index_select"}
REARRANGES |= {"unfold", "fold", "interpolate", "flip", "sort", "topk", "scatter", "scatter_", "scatter_add", "tile"}
DROPOUTS = {"dropout", "dropout_", "alpha_dropout", "feature_dropout"}
# What changes weights after the softmax: they are seen as they are used, so the changed tensor takes their place.
REWEIGHTS = {"masked_fill", "masked_fill_", "nan_to_num", "nan_to_num_", "where", "mul", "__mul__", "__rmul__", "mul_"}
REWEIGHTS |= {"div", "__truediv__", "div_", "__imul__", "__itruediv__", "multiply", "divide", "true_divide", "clamp"}
REWEIGHTS |= {"clamp_min", "relu", "pow", "__pow__", "sqrt", "square", "threshold", "normalize"}
SUBTRACTS = {"sub", "subtract", "__sub__", "__rsub__", "rsub", "sub_", "__isub__"}
# Of these the result may be negative, which no weights are.
MIXES = {"add", "__add__", "__radd__", "add_", "__iadd__", "neg", "__neg__", "lerp"} | SUBTRACTS
PARTS = {"chunk", "split", "unbind", "tensor_split"}
JOINS = {"stack", "cat", "concat", "hstack", "vstack"}
WRITES = {"__setitem__", "index_copy", "index_copy_", "copy_", "scatter", "scatter_", "index_put_", "masked_scatter"}
REDUCES = {"sum", "mean", "amax", "amin", "max", "min", "prod", "logsumexp", "norm", "vector_norm", "var", "std"}
REDUCES |= {"median", "nanmean", "nansum"}
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
SOFTMAXES = {"softmax", "special_softmax", "_safe_softmax", "softmin", "gumbel_softmax", "softmax_"}
CARRIES_OUTPUT = SHAPES | PARTS | JOINS | {"mul", "__mul__", "__rmul__", "mul_", "div", "__truediv__", "multiply"}
