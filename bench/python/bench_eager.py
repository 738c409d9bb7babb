#!/usr/bin/env python3
"""Times flash_kda on the CPU beside the same operation written in eager PyTorch, in one process on the same threads.

    python bench/python/bench_eager.py [--tokens 8192] [--heads 8] [--recurrence-tokens 512]

Two eager forms, both fp32, both with gate, normalisation and sigmoid inside the timed call, as flash_kda has them:
  recurrence   token by token (docs/algorithm.md, the four lines of the recurrence), all heads at once. Its time is
               proportional to T: it runs on --recurrence-tokens and is scaled to --tokens.
  chunked      chunks of 16 tokens: everything that needs no state in batched matrix products over all chunks, then a
               loop over the chunks. Runs on all --tokens.
Prints JSON: per form the milliseconds for --tokens (median), the ratio to flash_kda, and the rms difference from it.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

import flash_kda

LOWER_BOUND = -5.0
CHUNK = 16  # exp(-G) reaches exp(16 * 5) = 5e34, the largest power of two chunk that fits fp32 at this bound


def make_inputs(T, H, D=128):
    """bf16 q, k, v, g [1,T,H,D] and beta [1,T,H] from N(0,1); A_log [H] and dt_bias [H,D] from U(0,1)."""
    generator = torch.Generator().manual_seed(7)
    q, k, v, g = (torch.randn(1, T, H, D, generator=generator).bfloat16() for _ in range(4))
    beta = torch.randn(1, T, H, generator=generator).bfloat16()
    return q, k, v, g, beta, torch.rand(H, generator=generator), torch.rand(H, D, generator=generator)


def activate(q, k, v, g, beta, A_log, dt_bias):
    """q (scaled), k, v and log decay a as [H,T,D], b as [H,T], in fp32."""
    q, k, v, g = (x[0].transpose(0, 1).float() for x in (q, k, v, g))
    scale = q.shape[-1] ** -0.5
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    a = LOWER_BOUND * torch.sigmoid(A_log.exp()[:, None, None] * (g + dt_bias[:, None]))
    return scale * q, k, v, a, torch.sigmoid(beta[0].T.float())


def recurrence(*inputs):
    q, k, v, a, b = activate(*inputs)
    H, T, D = q.shape
    alpha = a.exp()
    S = torch.zeros(H, D, D)
    o = torch.empty_like(v)
    for t in range(T):
        S = alpha[:, t, :, None] * S
        u = b[:, t, None] * (v[:, t] - (k[:, t, None] @ S)[:, 0])
        S = S + k[:, t, :, None] * u[:, None]
        o[:, t] = (q[:, t, None] @ S)[:, 0]
    return o.transpose(0, 1)[None]


def chunked(*inputs):
    q, k, v, a, b = activate(*inputs)
    H, T, D = q.shape
    padding = -T % CHUNK
    q, k, v, a = (F.pad(x, (0, 0, 0, padding)).view(H, -1, CHUNK, D) for x in (q, k, v, a))
    b = F.pad(b, (0, padding)).view(H, -1, CHUNK, 1)
    G = a.cumsum(2)
    kd, qd, ki, kr = k * G.exp(), q * G.exp(), k * (-G).exp(), k * (G[:, :, -1:] - G).exp()
    L = b * (kd @ ki.mT).tril(-1)
    Mqk = (qd @ ki.mT).tril()
    INV = torch.linalg.solve_triangular(torch.eye(CHUNK) + L, torch.eye(CHUNK).expand_as(L), upper=False)
    W, V = INV @ (b * kd), INV @ (b * v)  # U = V - W S
    decay = G[:, :, -1, :, None].exp()
    S = torch.zeros(H, D, D)
    o = torch.empty_like(v)
    for c in range(q.shape[1]):
        U = V[:, c] - W[:, c] @ S
        o[:, c] = qd[:, c] @ S + Mqk[:, c] @ U
        S = decay[:, c] * S + kr[:, c].mT @ U
    return o.view(H, -1, D)[:, :T].transpose(0, 1)[None]


def ours(q, k, v, g, beta, A_log, dt_bias):
    o, _ = flash_kda.chunk_kda(
        q, k, v, g, beta, A_log=A_log, dt_bias=dt_bias, lower_bound=LOWER_BOUND,
        use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
    )  # fmt: skip
    return o


def milliseconds(function, inputs, runs):
    """Median over the runs, after one to warm up."""
    function(*inputs)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function(*inputs)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def difference(x, reference):
    return ((x.double() - reference.double()).square().mean().sqrt() / reference.double().square().mean().sqrt()).item()


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--recurrence-tokens", type=int, default=512)
    arguments = parser.parse_args()
    T = arguments.tokens
    inputs = make_inputs(T, arguments.heads)
    part = make_inputs(min(arguments.recurrence_tokens, T), arguments.heads)
    ms = milliseconds(ours, inputs, 7)
    rows = []
    for form, data, runs in ((recurrence, part, 3), (chunked, inputs, 3)):
        tokens = data[0].shape[1]
        scaled = milliseconds(form, data, runs) * T / tokens
        rows.append(
            {
                "form": form.__name__,
                "timed_tokens": tokens,
                "ms": scaled,
                "ratio": scaled / ms,
                "difference": difference(form(*data), ours(*data)),
            }
        )
    report = {
        "case": f"H{arguments.heads} T{T}",
        "gates": "random",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "flash_kda_ms": ms,
        "eager": rows,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
