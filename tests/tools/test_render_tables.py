"""tools/render_tables.py: the README's tables say what the record says."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from render_tables import rendered, size  # noqa: E402

T2 = "/threads:2/real_time"
RECORD = {
    "version": "9.8.7",
    "date": "2030-01-02T03:04:05Z",
    "machine": {"device": "A CPU", "cores": 2, "instruction_set": "AVX3"},
    "bars": {"o": 2e-3, "state": 2e-5},
    "accuracy": [{"family": "mild", "gate": "bounded", "o": {"rms": 1.66e-3}, "state": {"rms": 1.4e-7}}],
    "bench": [
        {"op": "prefill", "case": "H8 T8192", "gates": "random", "gate": "bounded", "ms_median": 100.0,
         "tokens_per_s": 81920.0},
        {"op": "prefill", "case": "H8 T8192", "gates": "real", "gate": "softplus", "ms_median": 125.04,
         "tokens_per_s": 65536.0},
        {"op": "decode", "case": "B64 H32", "gates": "random", "gate": "bounded", "ms_median": 20.0,
         "tokens_per_s": 3200.0},
    ],
    "large": {"workspace_bytes": 1 << 20, "process_peak_bytes": 5 << 29},
    "bench_cpu": [
        {"run_name": "peak" + T2, "real_time": 1, "time_unit": "ms", "FMA": 200e9},
        {"run_name": "copy" + T2, "real_time": 1, "time_unit": "ms", "bytes": 20e9},
        {"run_name": "prefill/H8 T8192/random" + T2, "real_time": 100, "time_unit": "ms", "FMA": 110e9},
        {"run_name": "plain/H8 T8192" + T2, "real_time": 0.35, "time_unit": "s", "FMA": 30e9},
        {"run_name": "decode/B64 H32/v-first in place" + T2, "real_time": 20, "time_unit": "ms", "bytes": 13e9},
    ],
    "eager": {"eager": [{"form": "recurrence", "ratio": 150.4}, {"form": "chunked", "ratio": 21.04}]},
}  # fmt: skip

GPU_RECORD = {
    "date": "2031-02-03T04:05:06Z", "gpu": "A GPU", "driver": "1.2", "cuda": "13.0", "copy_gb_per_s": 4178.4,
    "accuracy": [{"family": "g=0", "path": "portable", "o": 3.4e-3, "state": 1.9e-3}],
    "bench": [
        {"op": "prefill", "case": "H8 T8192", "gates": "random", "state": "fp32", "ms_median": 0.3954, "ms_min": 0.39,
         "gb_per_s": 2502.1, "floor_fraction": 0.05},
        {"op": "prefill", "case": "H8 T8192", "gates": "real", "state": "fp32", "ms_median": 0.4012, "ms_min": 0.39,
         "gb_per_s": 501.0, "floor_fraction": 0.05},
    ],
}  # fmt: skip


def show(name, gpu=None):
    text = f"before\n<!-- table {name} -->\nold\n<!-- end -->\nafter\n"
    new = rendered(text, {"cpu": RECORD, "gpu": gpu or GPU_RECORD})
    assert new.startswith(f"before\n<!-- table {name} -->\n")
    assert new.endswith("<!-- end -->\nafter\n")
    assert "old" not in new
    return new


def test_machine():
    assert "Version 9.8.7, 2030-01-02, on 2 cores of A CPU (AVX3)." in show("machine")


def test_accuracy():
    text = show("accuracy")
    assert "| inputs | gate | o (bar 2e-3) | final state (bar 2e-5) |\n|---|---|---:|---:|\n" in text
    assert "| mild | bounded | 1.7e-3 | 1.4e-7 |\n" in text


def test_speed_has_a_column_a_kind_of_gates():
    text = show("speed")
    assert "| operation | case | random, ms | real softplus, ms | tokens/s (random) |\n" in text
    assert "| prefill | H8 T8192 | 100.0 | 125.0 | 81,920 |\n" in text
    assert "| decode | B64 H32 | 20.0 |  | 3,200 |\n" in text


def test_compared():
    text = show("compared")
    assert "token and head) | 55% |" in text  # 110 of 200 GFMA/s
    assert "same threads) | 3.5x |" in text  # 350 against 100 ms
    assert "token by token (fp32) | 150x |" in text
    assert "chunk by chunk (fp32) | 21.0x |" in text
    assert "copy bandwidth | 65% |" in text  # 13 of 20 GB/s
    assert "| 1 MiB; 2.5 GiB |" in text


def test_gpu_machine():
    assert "2031-02-03, A GPU, driver 1.2, CUDA 13.0; a copy moves 4,178 GB/s" in show("gpu-machine")


def test_gpu_accuracy_has_two_columns_a_path_that_was_measured():
    text = show("gpu-accuracy")
    assert "| inputs | o, portable | final state |\n|---|---:|---:|\n| g=0 | 3.4e-3 | 1.9e-3 |\n" in text
    fused = {"family": "g=0", "o": 0.0025, "state": 0.0004, "path": "fused"}
    other = {"family": "g=4", "o": 0.0031, "state": 0.0005, "path": "fused"}  # not on the first path
    gpu = GPU_RECORD | {"accuracy": [*GPU_RECORD["accuracy"], fused, other]}
    text = show("gpu-accuracy", gpu=gpu)
    assert "| inputs | o, portable | final state | o, fused | final state |\n" in text
    assert "| g=0 | 3.4e-3 | 1.9e-3 | 2.5e-3 | 4.0e-4 |\n" in text
    assert "| g=4 |  |  | 3.1e-3 | 5.0e-4 |\n" in text


def test_gpu_speed_has_a_column_a_kind_of_gates():
    assert "| prefill | H8 T8192 | 0.395 | 0.401 | 2,502 | 5% |\n" in show("gpu-speed")


def test_size():
    assert [size(n) for n in (17, 1000, 1023 * 1024, 3 << 20, 5 << 29)] == [
        "17 B", "0.977 KiB", "0.999 MiB", "3 MiB", "2.5 GiB",
    ]  # fmt: skip


def test_readme_shows_the_record():
    result = subprocess.run(
        [sys.executable, ROOT / "tools/render_tables.py", "--check"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    record = json.loads((ROOT / "docs/cpu/verified.json").read_text())
    assert f"| {record['accuracy'][0]['family']} |" in (ROOT / "README.md").read_text()
