"""inspect_chunk: every symbol against its definition, and the picture."""

import sys

import pytest
import torch

import flash_kda

from oracle import BF16, FP32, FP64, random_inputs, recurrence, relative_rms

SHAPES = dict(
    q="rk", k="rk", v="rv", a="rk", G="rk", b="r", kd="rk", qd="rk", ki="rk", kr="rk", L="rr", Mqk="rr", INV="rr",
    U="rv", O="rv", S="kv", S_next="kv",
)  # fmt: skip


def look(inputs, **options):
    return flash_kda.inspect_chunk(
        *inputs.token_tensors, A_log=inputs.A_log, dt_bias=inputs.dt_bias, initial_state=inputs.initial_state,
        cu_seqlens=inputs.cu_seqlens, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("chunk_size, chunk, rows", [(16, 0, 16), (16, 2, 8), (32, 1, 8), (64, 0, 40)])
def test_symbols_and_shapes(chunk_size, chunk, rows):
    symbols = look(random_inputs(T=40, K=64, V=32), head=1, chunk=chunk, chunk_size=chunk_size)
    size = dict(r=rows, k=64, v=32)
    assert {name: tuple(t.shape) for name, t in symbols.items()} == {
        name: tuple(size[letter] for letter in shape) for name, shape in SHAPES.items()
    }
    assert all(t.dtype == FP64 for t in symbols.values())


def test_the_same_on_any_device(device):
    inputs = random_inputs(T=60, cu_seqlens=[0, 20, 60], initial_state=True)
    options = dict(head=1, sequence=1, chunk=1, lower_bound=-5.0)
    expected, symbols = look(inputs, **options), look(inputs.to(device), **options)
    assert all(t.device.type == device and torch.equal(t.cpu(), expected[name]) for name, t in symbols.items())


@pytest.mark.parametrize("head", [0, 3])
@pytest.mark.parametrize("sequence, chunk", [(0, 0), (1, 1), (1, 2)])
def test_definitions(head, sequence, chunk):
    """Each symbol from those before it (section 2 of the chunked form), and the chunk against the recurrence."""
    inputs = random_inputs(T=60, cu_seqlens=[0, 20, 60], initial_state=True)
    s = look(inputs, head=head, sequence=sequence, chunk=chunk, lower_bound=-0.5)
    scale = float(torch.tensor(128**-0.5, dtype=FP32))  # the C interface takes a float
    options = dict(gate="bounded", lower_bound=-0.5, l2norm=True, beta_form="sigmoid", scale=scale)
    expected = recurrence(inputs, **options)
    first = 16 * chunk
    rows = s["L"].shape[0]
    tokens = slice((0, 20)[sequence] + first, (0, 20)[sequence] + first + rows)

    def close(got, want):
        assert relative_rms(got, want) <= 1e-12

    for name, raw in (("q", inputs.q), ("k", inputs.k)):
        x = raw[0, tokens, head // 2].double()
        close(s[name], x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6))
    close(s["v"], inputs.v[0, tokens, head].double())
    close(s["b"], inputs.beta[0, tokens, head].double().sigmoid())
    close(s["G"], s["a"].cumsum(0))
    close(s["kd"], s["k"] * s["G"].exp())
    close(s["qd"], scale * s["q"] * s["G"].exp())
    close(s["ki"], s["k"] * (-s["G"]).exp())
    close(s["kr"], s["k"] * (s["G"][-1] - s["G"]).exp())
    close(s["L"], (s["b"].unsqueeze(1) * (s["kd"] @ s["ki"].T)).tril(-1))
    close(s["Mqk"], (s["qd"] @ s["ki"].T).tril())
    close(s["INV"] @ (torch.eye(rows, dtype=FP64) + s["L"]), torch.eye(rows, dtype=FP64))
    close(s["U"], s["INV"] @ (s["b"].unsqueeze(1) * (s["v"] - s["kd"] @ s["S"])))
    close(s["O"], s["qd"] @ s["S"] + s["Mqk"] @ s["U"])
    close(s["S_next"], s["G"][-1].exp().unsqueeze(1) * s["S"] + s["kr"].T @ s["U"])
    assert (s["L"].triu() == 0).all() and (s["Mqk"].triu(1) == 0).all()

    close(s["S"], expected.states[sequence][first, head])
    close(s["S_next"], expected.states[sequence][first + rows, head])
    close(s["O"], expected.o[0, tokens, head])


def test_is_what_chunk_kda_computes():
    inputs = random_inputs(T=40)
    options = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True)
    o, final_state = flash_kda.chunk_kda(
        *inputs.token_tensors, A_log=inputs.A_log, dt_bias=inputs.dt_bias, output_final_state=True, **options
    )
    symbols = look(inputs, head=2, chunk=2)
    assert relative_rms(o[0, 32:, 2], symbols["O"]) <= 2.5e-3
    assert relative_rms(final_state[0, 2], symbols["S_next"]) <= 2e-5


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(head=4, chunk=0), "head: got 4"),
        (dict(head=-1, chunk=0), "head: got -1"),
        (dict(head=0, chunk=3), "chunk: got 3"),
        (dict(head=0, chunk=0, sequence=1), "sequence: got 1"),
        (dict(head=0, chunk=0, chunk_size=8), "chunk_size: got 8, needs 16, 32 or 64"),
        (dict(head=0, chunk=0, chunk_size=1 << 40), "chunk_size: got "),
        (dict(head=0, chunk=0, lower_bound=-9.0), "lower_bound: "),
    ],
)
def test_bad_choices(options, says):
    with pytest.raises(ValueError, match="^" + says):
        look(random_inputs(T=40), **options)


def test_bad_tensors():
    x = random_inputs(T=40)
    with pytest.raises(ValueError, match="^q: got shape"):
        flash_kda.inspect_chunk(x.q[0], x.k, x.v, x.g, x.beta, head=0, chunk=0)
    with pytest.raises(NotImplementedError, match="^beta: requires grad"):
        flash_kda.inspect_chunk(x.q, x.k, x.v, x.g, x.beta.requires_grad_(), head=0, chunk=0)


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    symbols = look(random_inputs(T=40, dtype=BF16), head=0, chunk=1)
    figure = flash_kda.plot_chunk(symbols, tmp_path / "chunk.png")
    assert (tmp_path / "chunk.png").read_bytes().startswith(b"\x89PNG")
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["L [16 x 16]", "Mqk [16 x 16]", "INV [16 x 16]"]
    drawn = figure.axes[0].images[0].get_array()
    assert torch.equal(torch.from_numpy(drawn.filled()), symbols["L"])

    figure = flash_kda.plot_chunk(symbols, tmp_path / "vector.svg", names=["b", "ki"])
    assert (tmp_path / "vector.svg").stat().st_size > 0
    with pytest.raises(ValueError, match="names: got .*'X'"):
        flash_kda.plot_chunk(symbols, names=["X"])


def test_picture_of_overflowed_values():
    pytest.importorskip("matplotlib")
    symbols = dict(ki=torch.tensor([[float("inf"), 1.0], [0.0, -2.0]], dtype=FP64), L=torch.zeros(2, 2, dtype=FP64))
    figure = flash_kda.plot_chunk(symbols, names=["ki", "L"])
    assert figure.axes[0].images[0].get_clim() == (-2.0, 2.0)
    assert figure.axes[1].images[0].get_clim() == (-1.0, 1.0)


def test_picture_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        flash_kda.plot_chunk(dict(L=torch.zeros(2, 2)))
