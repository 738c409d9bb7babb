"""The examples in docs/python.md run, in order, as one program."""

import re

import torch
from conftest import REPOSITORY


def test_examples_run(tmp_path, monkeypatch, device):
    monkeypatch.chdir(tmp_path)
    text = (REPOSITORY / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 9
    names: dict[str, object] = {}
    with torch.device(device):  # where the examples make their tensors
        for block in blocks:
            line = text[: text.index(block)].count("\n")
            exec(compile("\n" * line + block, "docs/python.md", "exec"), names)
