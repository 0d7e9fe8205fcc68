"""Learn: one output of attention with plain numbers, then the same from regard; two tokens, "Thinking Machines"."""

import math

import torch

import regard

q = [[2.0, 1.0], [0.0, 1.0]]
k = [[2.0, 0.0], [1.0, 1.0]]
v = [[1.0, 0.0], [0.0, 1.0]]

scores = [sum(a * b for a, b in zip(q[0], key, strict=True)) / math.sqrt(2) for key in k]
exponentials = [math.exp(score) for score in scores]
weights = [one / sum(exponentials) for one in exponentials]
output = [sum(weight * value[i] for weight, value in zip(weights, v, strict=True)) for i in range(2)]

print("scores of “Thinking”, q·k / √2:", [round(one, 3) for one in scores])
print("softmax, the weights:          ", [round(one, 3) for one in weights])
print("z₁ = w₁₁ v₁ + w₁₂ v₂ =         ", [round(one, 3) for one in output])

z, w = regard.attention(torch.tensor(q), torch.tensor(k), torch.tensor(v), return_weights=True)
torch.testing.assert_close(w[0], torch.tensor(weights))
torch.testing.assert_close(z[0], torch.tensor(output))
print("regard.attention gives the same:", [round(one, 3) for one in z[0].tolist()])
