"""Build: decode with a cache and a sliding window, one token at a time, and get what one pass over all gives."""

import torch

import regard
from regard import masks

torch.manual_seed(0)
queries, keys, values = torch.randn(1, 8, 12, 64), torch.randn(1, 2, 12, 64), torch.randn(1, 2, 12, 64)
mask = masks.Causal() & masks.Window(4)  # each token sees itself and the three before it

whole = regard.attention(queries, keys, values, mask=mask)  # 8 query heads share 2 key–value heads
steps = [
    # The cache holds what has been; queries are the last positions of the keys, so the mask needs no telling.
    regard.attention(queries[:, :, n : n + 1], keys[:, :, : n + 1], values[:, :, : n + 1], mask=mask)
    for n in range(12)
]
torch.testing.assert_close(torch.cat(steps, 2), whole)

print("who may see whom:")
for row in mask.bind(12, 12).dense()[0, 0]:
    print("  " + " ".join("█" if seen else "·" for seen in row.tolist()))
print(f"12 steps with a cache and one pass agree to {(torch.cat(steps, 2) - whole).abs().max():.1e}")
print(regard.explain(queries, keys, values, mask=mask))
