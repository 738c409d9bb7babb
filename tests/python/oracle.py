"""The token recurrence in fp64, written with torch and independently of the library, and inputs for it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64

# Bars of rms(x - ref) / rms(ref), by device and type of the result. On the CPU, rounding to that type is most of the
# 16-bit ones. On a GPU the products take bf16 operands whatever the result's type.
OUT_BAR = {
    "cpu": {BF16: 2e-3, FP16: 4e-4, FP32: 2e-5},
    "cuda": {BF16: 5.5e-3, FP16: 5.5e-3, FP32: 5.5e-3},
}
STATE_BAR = {
    "cpu": {BF16: 2e-3, FP32: 2e-5},
    "cuda": {BF16: 5.5e-3, FP32: 5e-3},
}
# The finest type of q, k and v that the device's backend takes.
FINEST = {"cpu": FP32, "cuda": BF16}


def relative_rms(got: Tensor, reference: Tensor) -> float:
    got, reference = got.cpu().double(), reference.cpu().double()
    assert got.shape == reference.shape
    if reference.numel() == 0:
        return 0.0
    error, norm = (got - reference).square().mean().sqrt(), reference.square().mean().sqrt()
    return float(error / norm) if norm > 0 else float(error)


@dataclass
class Inputs:
    """What one call computes. Token tensors [B,T,heads,width]; states are [N,HV,K,V] here."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    A_log: Tensor | None = None
    dt_bias: Tensor | None = None
    initial_state: Tensor | None = None
    cu_seqlens: Tensor | None = None

    def to(self, device: str) -> Inputs:
        return replace(self, **{name: value.to(device) for name, value in vars(self).items() if value is not None})

    @property
    def token_tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v, self.g, self.beta

    @property
    def sequences(self) -> list[tuple[int, slice]]:
        """(batch row, token rows) of each sequence."""
        B, T = self.q.shape[:2]
        if self.cu_seqlens is None:
            return [(row, slice(0, T)) for row in range(B)]
        bounds = self.cu_seqlens.tolist()
        return [(0, slice(begin, end)) for begin, end in pairwise(bounds)]


def random_inputs(
    B=1, T=67, H=2, HV=4, K=128, V=128, *, dtype=BF16, g_dtype=None, beta_dtype=None, cu_seqlens=None,
    initial_state=False, seed=0,
) -> Inputs:  # fmt: skip
    """Raw gates, logits, A_log and dt_bias as a trained layer has them; every value head distinct."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0, offset=0.0, dtype=FP32):
        return (torch.randn(*shape, generator=generator) * scale + offset).to(dtype)

    cu = None if cu_seqlens is None else torch.tensor(cu_seqlens, dtype=torch.int64)
    N = B if cu is None else len(cu) - 1
    return Inputs(
        q=normal(B, T, H, K, dtype=dtype),
        k=normal(B, T, H, K, dtype=dtype),
        v=normal(B, T, HV, V, dtype=dtype),
        g=normal(B, T, HV, K, scale=2.0, offset=-2.0, dtype=g_dtype or dtype),
        beta=normal(B, T, HV, scale=2.0, dtype=beta_dtype or dtype),
        A_log=normal(HV, scale=0.5),
        dt_bias=normal(HV, K, scale=0.5),
        initial_state=normal(N, HV, K, V) if initial_state else None,
        cu_seqlens=cu,
    )


@dataclass
class Result:
    o: Tensor  # [B,T,HV,V]
    final_state: Tensor  # [N,HV,K,V]
    states: list[Tensor]  # per sequence [length+1,HV,K,V]: the state after 0, 1, .. tokens


def log_decay(inputs: Inputs, gate: str, lower_bound: float) -> Tensor:
    g = inputs.g.double()
    if gate == "log":
        return g
    A = 1.0 if inputs.A_log is None else inputs.A_log.double().exp().reshape(-1, 1)
    if inputs.dt_bias is not None:
        g = g + inputs.dt_bias.double().reshape(g.shape[2:])
    if gate == "bounded":
        return lower_bound * torch.sigmoid(A * g)
    return -A * torch.nn.functional.softplus(g, threshold=1000.0)


@contextmanager
def one_thread():
    """torch's threads would spend their time waiting for each other on tensors as small as one token's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def recurrence(
    inputs: Inputs, *, gate="log", lower_bound=-5.0, scale=None, l2norm=False, beta_form="activated"
) -> Result:
    q, k, v, beta = (x.double() for x in (inputs.q, inputs.k, inputs.v, inputs.beta))
    if l2norm:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    repeat = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(repeat, dim=2) for x in (q, k))  # value head hv reads q/k head hv // repeat
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    a = log_decay(inputs, gate, lower_bound)
    b = {"activated": beta, "sigmoid": beta.sigmoid(), "twice": 2 * beta.sigmoid()}[beta_form]

    o = torch.zeros_like(v)
    finals, trails = [], []
    for n, (row, tokens) in enumerate(inputs.sequences):
        S = torch.zeros(v.shape[2], q.shape[3], v.shape[3], dtype=FP64)
        if inputs.initial_state is not None:
            S = inputs.initial_state[n].double()
        trail = [S]
        for t in range(tokens.start, tokens.stop):
            S = a[row, t].exp().unsqueeze(-1) * S
            read = torch.einsum("hk,hkv->hv", k[row, t], S)
            S = S + torch.einsum("hk,hv->hkv", k[row, t], b[row, t].unsqueeze(-1) * (v[row, t] - read))
            o[row, t] = torch.einsum("hk,hkv->hv", q[row, t], S)
            trail.append(S)
        finals.append(S)
        trails.append(torch.stack(trail))
    shape = (0, v.shape[2], q.shape[3], v.shape[3])
    return Result(o, torch.stack(finals) if finals else torch.zeros(shape, dtype=FP64), trails)
