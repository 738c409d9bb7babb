"""Trained layers' inputs against their fp64 results."""

import pytest

import flash_kda

from oracle import BF16, FP32, OUT_BAR, STATE_BAR, relative_rms

torch_file = pytest.importorskip("safetensors.torch", reason="needs the package safetensors")

FLAGS = dict(
    use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, output_final_state=True,
    state_v_first=True,
)  # fmt: skip


def check(directory, stem, gate, device):
    layer = torch_file.load_file(directory / f"kda_{gate}_{stem}.safetensors", device=device)
    expected = torch_file.load_file(directory / f"kda_{gate}_{stem}_expected.safetensors")
    q, k, v, g, beta = (layer[name].unsqueeze(0) for name in ("q", "k", "v", "g", "beta"))
    for function in (flash_kda.chunk_kda, flash_kda.fused_recurrent_kda):
        o, final_state = function(
            q, k, v, g, beta, A_log=layer["A_log"], dt_bias=layer["dt_bias"],
            lower_bound=-5.0 if gate == "bounded" else None, **FLAGS,
        )  # fmt: skip
        assert relative_rms(o[0], expected["o"]) <= OUT_BAR[device][BF16]
        assert relative_rms(final_state[0], expected["final_state"]) <= STATE_BAR[device][FP32]


@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_slice(gate, data_directory, device):
    check(data_directory, "slice", gate, device)


@pytest.mark.parametrize("gate", ["bounded", "softplus"])
def test_full_layer(gate, device, full_data_directory):
    check(full_data_directory, "layer2", gate, device)
