"""Look into one chunk of the computation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from . import _library
from ._attention import _beta_activation, _state_layout, optional_scale, select_gate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def inspect_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    head: int,
    chunk: int,
    sequence: int = 0,
    chunk_size: int = 16,
) -> dict[str, Tensor]:
    """Every symbol of the chunked form for one chunk of one value head, in fp64.

    The tensors and flags are those of chunk_kda, with its defaults. Computed on the CPU: CUDA tensors are copied
    there, which waits for them. The results are on the device of q.

    Args:
        head: value head, 0 .. HV-1.
        chunk: index of the chunk in its sequence, 0 .. ceil(length / chunk_size) - 1.
        sequence: 0 .. N-1.
        chunk_size: tokens in a chunk: 16, 32 or 64.

    Returns, with rows = the tokens in this chunk (fewer than chunk_size in a sequence's last one):
        q, k, v     [rows,K], [rows,K], [rows,V]    after normalisation, q not scaled
        a           [rows,K]     log decay of each token
        G           [rows,K]     prefix sum of a within the chunk, the token itself included
        b           [rows]       activated beta
        kd, qd      [rows,K]     k * exp(G), scale * q * exp(G)
        ki, kr      [rows,K]     k * exp(-G) (inf where that overflows), k * exp(G_last - G)
        L           [rows,rows]  strictly lower: b_i * (kd_i . ki_j)
        Mqk         [rows,rows]  lower with diagonal: qd_i . ki_j
        INV         [rows,rows]  (I + L)^-1
        U           [rows,V]     INV (b o (v - kd S))
        O           [rows,V]     qd S + Mqk U, the output
        S, S_next   [K,V]        state before and after the chunk, whatever the layout of initial_state

    Raises ValueError, TypeError and NotImplementedError as chunk_kda does.
    """
    _library.check_tensors(
        dict(q=q, k=k, v=v, g=g, beta=beta),
        dict(A_log=A_log, dt_bias=dt_bias, initial_state=initial_state, cu_seqlens=cu_seqlens),
    )
    gate, bound, A_log, dt_bias = select_gate(use_gate_in_kernel, lower_bound, A_log, dt_bias)
    tensors = (q, k, v, g, beta, A_log, dt_bias, cu_seqlens, initial_state)
    if all(t is None or t.device == q.device for t in tensors):  # mixed devices are the core's to refuse
        tensors = tuple(None if t is None else t.cpu() for t in tensors)
    symbols = _library.call(
        _library.inspect_chunk,
        *tensors, optional_scale(scale), gate, bound, bool(use_qk_l2norm_in_kernel),
        _beta_activation(use_beta_sigmoid_in_kernel, allow_neg_eigval), _state_layout(state_v_first, False), sequence,
        head, chunk, chunk_size,
    )  # fmt: skip
    names = (result.name for result in _library.inspect_chunk._schema.returns)
    return {name: symbol.to(q.device) for name, symbol in zip(names, symbols, strict=True)}


def plot_chunk(
    symbols: Mapping[str, Tensor],
    path: str | os.PathLike[str] | None = None,
    names: Iterable[str] = ("L", "Mqk", "INV"),
) -> Figure:
    """Heat maps of a chunk's symbols, side by side: blue below zero, red above, white at zero.

    Args:
        symbols: what inspect_chunk returns.
        path: where to save the picture; its ending chooses the format (.png, .pdf, .svg). None: not saved.
        names: which symbols, matrices or vectors.

    Returns the matplotlib figure. Raises ImportError if matplotlib is missing, ValueError for an unknown name.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("flash_kda.plot_chunk needs matplotlib: pip install matplotlib") from error

    names = list(names)
    if not names or not set(names) <= set(symbols):
        raise ValueError(f"names: got {names}, needs some of {', '.join(symbols)}")
    figure = Figure(figsize=(4.4 * len(names), 4.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        matrix = symbols[name].detach().cpu().double()
        matrix = matrix.unsqueeze(1) if matrix.dim() == 1 else matrix
        finite = matrix[matrix.isfinite()]
        limit = float(finite.abs().max()) if finite.numel() else 0.0
        image = axes.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-limit or -1.0, vmax=limit or 1.0, aspect="auto")
        axes.set_title(f"{name} [{matrix.shape[0]} x {matrix.shape[1]}]")
        axes.set_xlabel("column")
        axes.set_ylabel("row")
        figure.colorbar(image, ax=axes, shrink=0.8)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
