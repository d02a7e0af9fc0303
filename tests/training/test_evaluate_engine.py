"""`mmrl evaluate` of a run whose answers an engine drew, where that engine is no longer there."""

from pathlib import Path

import pytest
from PIL import Image

from mmrl.modalities.gui import Gui
from tests.commands.test_sample_images import CONFIG
from tests.tiny_cli import command_line


@pytest.mark.slow  # most of a second each, or more
def test_a_run_is_evaluated_without_the_engine_that_drew_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = command_line(tmp_path, monkeypatch, capsys)
    Gui(model="Qwen/Qwen2.5-VL-3B-Instruct", dialect="plain").tiny(0, tmp_path / "twin")
    evaluated = "evaluation: {sampler: {name: autoregressive, max_tokens: 6}, samples_per_prompt: 1}\n"
    held_out = CONFIG.replace("rows.jsonl}}", "rows.jsonl}, held_out: {path: rows.jsonl}}")
    Path("asked.yaml").write_text(held_out + evaluated)
    Path("rows.jsonl").write_text('{"prompt": "click OK", "image": "a.png"}\n')
    Image.new("RGB", (64, 40), "red").save("a.png")
    ended = cli("train", "asked.yaml", "--out", "run")
    assert ended.code == 0, ended.err
    settings = Path("run/config.yaml")
    written = settings.read_text()
    engine = 'modality:\n  engine: {name: vllm, url: "http://127.0.0.1:9", retries: 0}\n'
    settings.write_text(written.replace("modality:\n", engine))
    refused = cli("evaluate", "run")
    assert refused.code == 2 and "nothing answers at http://127.0.0.1:9" in refused.err
    assert cli("evaluate", "run", "modality.engine=null").code == 0
