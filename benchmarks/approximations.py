"""How far approximations are from exact attention: the table and the figure of docs/approximations.md.

    python benchmarks/approximations.py [--write]

Without --write the table is printed; with it docs/approximations.md and docs/images/approximations.png are renewed.
"""

import argparse
from pathlib import Path

import torch

import regard
from regard.approximations import Compression, nystromformer_attention, performer_attention, random_features

DOCS = Path(__file__).resolve().parent.parent / "docs"
FEATURES = (16, 64, 256, 1024)
RANKS = (4, 8, 16, 32, 64, 128, 256)
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def performer(count: int, spread: float, eps: float, *, orthogonal: bool = True) -> float:
    """Relative error over 1,024 tokens, the mean of five draws of q, k, v and features."""
    errors = []
    for seed in range(5):
        q, k, v = (normal(1024, 64, seed=10 * seed + part) * scale for part, scale in enumerate((spread, spread, 1.0)))
        generator = torch.Generator().manual_seed(1000 + seed)
        if orthogonal:
            features = random_features(count, 64, generator=generator)
        else:
            features = torch.randn(count, 64, generator=generator)
        result = performer_attention(q, k, v, features, eps=eps)
        errors.append(result.error(regard.attention(q, k, v)))
    return sum(errors) / len(errors)


def lemma(rank: int, length: int) -> float:
    """What RᵀR between weights and values does to a row, as a share of ‖weights‖ · ‖values‖ (Linformer's theorem 1)."""
    q, k, v = (normal(length, 64, seed=part) for part in range(3))
    _, weights = regard.attention(q, k, v, return_weights=True)
    r = normal(rank, length, seed=7) * rank**-0.5
    apart = (weights @ r.T) @ (r @ v) - weights @ v
    return float((apart / weights.norm(dim=1, keepdim=True) / v.norm(dim=0)).square().mean().sqrt())


def sequences(batch: int, seed: int) -> tuple[torch.Tensor, ...]:
    """q, k and v of width 32 for 256 tokens that resemble their neighbours, as those of texts and images do."""
    noise = normal(3, batch, 1, 256 + 31, 32, seed=seed)
    smooth = noise.unfold(3, 32, 1).sum(-1) / 32**0.5
    return smooth[0], smooth[1], smooth[2]


def linformer(rank: int) -> float:
    """Relative error on new sequences after E and F were fitted to exact attention."""
    torch.manual_seed(rank)
    compression = Compression(256, rank, sharing="headwise")
    with torch.no_grad():  # start from means of neighbours, which fitting then improves
        means = torch.zeros(rank, 256)
        for row, part in enumerate(torch.arange(256).tensor_split(rank)):
            means[row, part] = 1 / len(part)
        for one in compression.parameters():
            one.copy_(means)
    optimizer = torch.optim.Adam(compression.parameters(), lr=1e-3)
    for step in range(300):
        q, k, v = sequences(8, seed=1000 + step)
        loss = (regard.attention(q, *compression(k, v)) - regard.attention(q, k, v)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    q, k, v = sequences(32, seed=1)
    with torch.no_grad():
        exact = regard.attention(q, k, v)
        return float((regard.attention(q, *compression(k, v)) - exact).norm() / exact.norm())


def nystromformer(num_landmarks: int, *, smooth: bool) -> float:
    """Relative error over 256 tokens that resemble their neighbours, or standard normal ones."""
    q, k, v = sequences(32, seed=1) if smooth else normal(3, 32, 1, 256, 32, seed=1)
    return nystromformer_attention(q, k, v, num_landmarks).error(regard.attention(q, k, v))


def measure() -> dict[str, dict[int, float]]:
    return {
        "Performer, deviation 0.35": {count: performer(count, 0.35, 1e-4) for count in FEATURES},
        "Performer, deviation 0.35, not orthogonal": {
            count: performer(count, 0.35, 1e-4, orthogonal=False) for count in FEATURES
        },
        "Performer, deviation 0.5": {count: performer(count, 0.5, 1e-4) for count in FEATURES},
        "Performer, deviation 1": {count: performer(count, 1.0, 1e-4) for count in FEATURES},
        "Performer, deviation 1, eps 0": {count: performer(count, 1.0, 0.0) for count in FEATURES},
        "Linformer, fitted, 256 tokens": {rank: linformer(rank) for rank in RANKS},
        "Nyströmformer, 256 tokens": {rank: nystromformer(rank, smooth=True) for rank in RANKS},
        "Nyströmformer, 256 unlike tokens": {rank: nystromformer(rank, smooth=False) for rank in RANKS},
        "RᵀR, 256 tokens": {rank: lemma(rank, 256) for rank in RANKS},
        "RᵀR, 4,096 tokens": {rank: lemma(rank, 4096) for rank in RANKS},
    }


def table(measured: dict[str, dict[int, float]]) -> str:
    sizes = sorted({size for line in measured.values() for size in line})
    rows = [
        "| features, rank or landmarks | " + " | ".join(f"{size:,}" for size in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for name, line in measured.items():
        cells = (f"{line[size]:.3f}" if size in line else "" for size in sizes)
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def figure(measured: dict[str, dict[int, float]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    canvas, axes = plt.subplots(figsize=(7, 5.5), layout="constrained")
    for name, line in measured.items():
        line = {size: error for size, error in line.items() if error > 1e-3}  # a logarithm cannot show what is exact
        axes.plot(list(line), list(line.values()), marker="o", markersize=4, label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="features (Performer), rank (Linformer) or landmarks (Nyströmformer)",
        ylabel="relative error",
    )
    axes.set_xticks([4**n for n in range(1, 6)], [f"{4**n:,}" for n in range(1, 6)])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_ylim(bottom=0.01)
    canvas.legend(fontsize=8, ncols=2, loc="outside lower center")
    canvas.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew the page and the figure")
    arguments = parser.parse_args()
    measured = measure()
    print(table(measured))
    if arguments.write:
        page = DOCS / "approximations.md"
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        page.write_text(before + BEGIN + "\n" + table(measured) + "\n" + END + rest.split(END)[1], encoding="utf-8")
        figure(measured, DOCS / "images" / "approximations.png")


if __name__ == "__main__":
    main()
