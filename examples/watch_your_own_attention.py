"""See: watch an attention written out by hand, as tutorials write it, without changing a line of it."""

import math

import torch
from torch import nn

import regard


class SelfAttention(nn.Module):
    """Several heads, a mask of zeros and ones, dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores.masked_fill(mask == 0, -1e9), -1)
        return (self.dropout(weights) @ v).transpose(1, 2).flatten(-2)


torch.manual_seed(0)
words = ["the", "cat", "chased", "the", "mouse"]
model, x, mask = SelfAttention(32, 2), torch.randn(1, 5, 32), torch.ones(5, 5).tril()

state = torch.get_rng_state()
plain = model(x, mask)
torch.set_rng_state(state)
with regard.watch(model, tokens=words) as seen:
    watched = model(x, mask)
assert torch.equal(plain, watched), "watching changed the output"

for best in seen.rank_heads("mouse", "cat"):
    print(f"layer {best.layer} head {best.head}: mouse looks at cat with weight {best.weight:.3f}")
print("head 0, every weight (before dropout):")
print(seen.weights(layer=0, head=0)[0].round(2))
print("entropy of each row, in nats:", seen.entropy(layer=0, head=0)[0].round(2))
