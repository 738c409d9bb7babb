#!/usr/bin/env python3
"""Errors of this library and of flash-linear-attention against fp64 over the sixteen gate families, as a picture.

    python bench/python/error_picture.py [--output docs/figures/error.png] [--json FILE] [--tokens 8192]

Needs a GPU, flash_kda built for it, and fla and matplotlib (pip install flash-linear-attention matplotlib). The
families are those of src/check/families.hpp, each a few heads of one batch: q, k, v ~ U(0,1), beta ~ N(0,1), A_log = 0,
bounded gate with lower bound -5, an initial state of N(0, 0.25). Exit status 1 if this library's rms error is above
1.05 times fla's in a family.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ["FLA_FLASH_KDA"] = "0"  # fla would hand the call to this very package

import torch

import flash_kda

ROOT = Path(__file__).resolve().parents[2]
D = 128
LOWER_BOUND = -5.0
LIMIT = 1.05  # of fla's rms error
COPIES = 16  # heads a family: a state that forgets is made of a few tokens, and the error of one is chance


def constant(value):
    return lambda shape, random: torch.full(shape, float(value), device="cuda")


def uniform(low, high):
    return lambda shape, random: torch.empty(shape, device="cuda").uniform_(low, high, generator=random)


def normal(deviation):
    return lambda shape, random: torch.randn(shape, generator=random, device="cuda") * deviation


def either(value):
    return lambda shape, random: value * (1.0 - 2.0 * torch.randint(2, shape, generator=random, device="cuda"))


# name: (g [T,COPIES,128], dt_bias [COPIES,128])
FAMILIES = {
    "g=-8": (constant(-8), constant(0)),
    "g=-4": (constant(-4), constant(0)),
    "g=0": (constant(0), constant(0)),
    "g=8": (constant(8), constant(0)),
    "g=U(-8,8)": (uniform(-8, 8), constant(0)),
    "g=N(0,8)": (normal(8), constant(0)),
    "g=0 bias={-4,4}": (constant(0), either(4)),
    "g=0 bias={-8,8}": (constant(0), either(8)),
    "g=0 bias=U(-8,8)": (constant(0), uniform(-8, 8)),
    "g=0 bias=N(0,8)": (constant(0), normal(8)),
    "g=N(0,1)": (normal(1), constant(0)),
    "g=N(0,1) bias=U(0,1)": (normal(1), uniform(0, 1)),
    "g=N(0,1) bias={-8,8}": (normal(1), either(8)),
    "g=N(0,1) bias=U(-8,8)": (normal(1), uniform(-8, 8)),
    "g=U(-8,8) bias={-4,4}": (uniform(-8, 8), either(4)),
    "g=N(0,8) bias=N(0,8)": (normal(8), normal(8)),
}


def inputs(tokens):
    """q, k, v, g [1,T,H,128] and beta [1,T,H] bf16; A_log [H], dt_bias [H,128], state [1,H,V,K] fp32. H: COPIES heads a
    family."""
    random, heads = torch.Generator("cuda").manual_seed(1), COPIES * len(FAMILIES)
    x = {name: uniform(0, 1)((1, tokens, heads, D), random).bfloat16() for name in "qkv"}
    g = [g((tokens, COPIES, D), random).bfloat16() for g, _ in FAMILIES.values()]
    x["g"] = torch.cat(g, dim=1)[None]
    x["beta"] = normal(1)((1, tokens, heads), random).bfloat16()
    x["A_log"] = torch.zeros(heads, device="cuda")
    x["dt_bias"] = torch.cat([bias((COPIES, D), random) for _, bias in FAMILIES.values()])
    x["state"] = normal(0.5)((1, heads, D, D), random)
    return x


def recurrence(x):
    """o [T,H,V] and final state [H,V,K] in fp64, token by token (docs/algorithm.md, eq. 1 to 8)."""
    A, bias = x["A_log"].double().exp()[:, None], x["dt_bias"].double()
    S = x["state"][0].double().transpose(1, 2).contiguous()  # [H,K,V]
    o = torch.empty(x["v"].shape[1:], dtype=torch.float64, device="cuda")
    for t in range(o.shape[0]):
        q, k, v, g = (x[name][0, t].double() for name in ("q", "k", "v", "g"))
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        S *= torch.exp(LOWER_BOUND * torch.sigmoid(A * (g + bias)))[:, :, None]
        u = torch.sigmoid(x["beta"][0, t].double())[:, None] * (v - torch.einsum("hk,hkv->hv", k, S))
        S += k[:, :, None] * u[:, None, :]
        o[t] = torch.einsum("hk,hkv->hv", q, S) * D**-0.5
    return o, S.transpose(1, 2)


def ours(x):
    out, state = torch.empty_like(x["v"]), torch.empty_like(x["state"])
    flash_kda.fwd(
        x["q"], x["k"], x["v"], x["g"], x["beta"], D**-0.5, out, x["A_log"], x["dt_bias"], LOWER_BOUND, x["state"],
        state,
    )  # fmt: skip
    return out[0].double(), state[0].double()


def flas(x):
    from fla.ops.kda import chunk_kda
    from triton.runtime.autotuner import Autotuner

    # Trying all configurations of its kernels takes minutes and changes no rounding that matters: the first one each.
    prune = Autotuner.prune_configs
    Autotuner.prune_configs = lambda *args: prune(*args)[:1]
    out, state = chunk_kda(
        x["q"], x["k"], x["v"], x["g"], x["beta"], scale=D**-0.5, output_final_state=True, A_log=x["A_log"],
        initial_state=x["state"].transpose(-1, -2).contiguous(), dt_bias=x["dt_bias"].flatten(),
        use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True,
        lower_bound=LOWER_BOUND,
    )  # fmt: skip
    return out[0].double(), state[0].double().transpose(-1, -2)


def measures(result, truth):
    """One row a family."""
    rows = []
    for index, name in enumerate(FAMILIES):
        row, heads = {"family": name}, slice(index * COPIES, (index + 1) * COPIES)
        for key, x, y in (("o", result[0][:, heads], truth[0][:, heads]), ("state", result[1][heads], truth[1][heads])):
            error = (x - y).abs()
            row[key] = (error.square().mean().sqrt() / y.square().mean().sqrt()).item()
            row[key + "_max"], row[key + "_mae"] = error.max().item(), error.mean().item()
        rows.append(row)
    return rows


def draw(path, rows, samples):
    """rows: {library: rows of measures}; samples: {library: |error| of o over all families}."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(5, 1, figsize=(9, 14), layout="constrained")
    titles = {
        "o": "o: rms error / rms", "state": "final state: rms error / rms", "o_max": "o: largest error",
        "o_mae": "o: mean absolute error (MAE)",
    }  # fmt: skip
    for axis, (key, title) in zip(axes, titles.items(), strict=False):
        for index, (library, values) in enumerate(rows.items()):
            places = [i + 0.4 * index - 0.2 for i in range(len(values))]
            axis.bar(places, [row[key] for row in values], width=0.4, label=library)
        axis.set_title(title)
        axis.set_xticks(range(len(FAMILIES)), list(FAMILIES) if key == "o_mae" else [""] * len(FAMILIES))
        axis.tick_params(axis="x", rotation=40)
        for label in axis.get_xticklabels():
            label.set_horizontalalignment("right")
        axis.grid(axis="y", alpha=0.3)
    axes[0].legend()
    for library, errors in samples.items():
        logs = torch.log10(errors.clamp_min(1e-8)).cpu()
        counts = torch.histc(logs, bins=120, min=-8, max=-1)
        axes[4].plot(torch.linspace(-8, -1, 120), counts / counts.sum(), label=library)
    axes[4].set_title("o: distribution of log10 |error|, all families")
    axes[4].grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=70)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/figures/error.png")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--tokens", type=int, default=8192)
    arguments = parser.parse_args()
    x = inputs(arguments.tokens)
    with torch.inference_mode():
        truth = recurrence(x)
        results = {"flash_kda": ours(x), "fla": flas(x)}
    rows = {library: measures(result, truth) for library, result in results.items()}
    worse = []
    print(f"{'family':24} {'o':>9} {'fla':>9} {'state':>9} {'fla':>9}")
    for mine, other in zip(rows["flash_kda"], rows["fla"], strict=True):
        print(f"{mine['family']:24} {mine['o']:9.2e} {other['o']:9.2e} {mine['state']:9.2e} {other['state']:9.2e}")
        worse += [(mine["family"], key) for key in ("o", "state") if mine[key] > LIMIT * other[key]]
    for family, key in worse:
        print(f"{family}: the error of {key} is above {LIMIT} times fla's")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    draw(arguments.output, rows, {library: (result[0] - truth[0]).abs() for library, result in results.items()})
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
