"""Kimi Delta Attention on what a trained layer saw: the inputs in data/, against the result in fp64.

python examples/python/real_layer.py
"""

from pathlib import Path

from safetensors.torch import load_file

from flash_kda import chunk_kda

DATA = Path(__file__).resolve().parents[2] / "data"


def rms(x):
    return x.double().square().mean().sqrt()


def main():
    layer = load_file(DATA / "kda_bounded_slice.safetensors")
    expected = load_file(DATA / "kda_bounded_slice_expected.safetensors")
    q, k, v, g, beta = (layer[name].unsqueeze(0) for name in ("q", "k", "v", "g", "beta"))  # [1,T,H,D]; beta [1,T,H]
    A_log, dt_bias = layer["A_log"], layer["dt_bias"]  # [H]; [H,D]

    # fmt: off
    # README: begin
    o, final_state = chunk_kda(
        q, k, v, g, beta,
        A_log=A_log, dt_bias=dt_bias, lower_bound=-5.0,
        use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
        output_final_state=True, state_v_first=True,
    )
    # README: end
    # fmt: on

    for name, got in (("o", o), ("final_state", final_state)):
        error = rms(got[0] - expected[name]) / rms(expected[name])
        print(f"{name:12} {got.dtype!s:15} {list(got.shape)}: {error:.1e} of its rms from fp64")


if __name__ == "__main__":
    main()
