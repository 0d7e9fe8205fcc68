"""Names of torch functions by their effect on scores, weights and attention outputs."""

__all__ = ["ADDED", "DROPOUTS", "JOINS", "LINEAR", "NORMS", "PRODUCTS", "RECURRENT", "SHAPES", "SOFTMAXES", "WRITES"]

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
DROPOUTS = {"dropout", "dropout_", "alpha_dropout", "feature_dropout", "native_dropout"}
JOINS = {"stack", "cat", "concat", "concatenate", "hstack", "vstack"}
WRITES = {"__setitem__", "index_copy", "index_copy_", "copy_", "scatter", "scatter_", "index_put_", "masked_scatter"}
WRITES |= {"index_add", "index_add_", "scatter_add_", "scatter_reduce", "scatter_reduce_"}
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
SOFTMAXES = {"softmax", "special_softmax", "_safe_softmax", "softmin", "gumbel_softmax", "softmax_"}
SOFTMAXES |= {"_softmax", "_masked_softmax", "_sparse_softmax"}
