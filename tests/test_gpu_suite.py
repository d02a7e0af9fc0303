"""The GPU suite: its lines, its exit codes, its counts, its page; and all of it at small sizes on the CPU."""

import importlib
import json
import subprocess
import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.system.out_of_memory import reported
from tests.parameters import in_one_test

ROOT = Path(__file__).parents[1]
# imported by name: for mypy, files in benchmarks/ have names without it
command, running, measuring, page, results, answers = (
    importlib.import_module(f"benchmarks.gpu.{name}")
    for name in ("__main__", "running", "measuring", "page", "results", "answers")
)
GROUPS = {
    1: ["sd35_rollout", "sd35_update", "sd35_precision", "decode_and_rewards", "unets", "every_config_tiny"],
    2: ["decode_7b", "tower", "packed_update", "log_probs"],
    3: ["runs_tiny_and_resume", "mesh_of_one_and_server"],
}
NAMES = [name for names in GROUPS.values() for name in names]


def with_check(monkeypatch: pytest.MonkeyPatch, function: Any, name: str = "tower") -> None:
    """Puts a function in the place of the one behind a check."""
    check = next(one for one in running.CHECKS if one.name == name)
    monkeypatch.setattr(type(check), "function", lambda self: function)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_there_are_twelve_checks_in_three_groups_of_under_eight_minutes() -> None:
    assert [check.name for check in running.CHECKS] == NAMES
    assert all(check.name in GROUPS[check.group] for check in running.CHECKS)
    for group in (1, 2, 3):
        assert sum(check.seconds for check in running.CHECKS if check.group == group) < 480


@pytest.mark.slow
def test_a_check_that_passes_gives_one_line_and_exit_0(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def check(measured: Any) -> None:
        print("a library that is talkative")
        subprocess.run(["echo", "and its process"], check=True)
        measured.figures["answer"] = 42
        measured.on_cuda("a kernel")

    with_check(monkeypatch, check)
    assert command.main(["--tiny", "tower"]) == 0
    (line,) = lines_of(capfd.readouterr().out)
    assert line.pop("seconds") >= 0
    assert line == {
        "check": "tower",
        "group": 2,
        "status": "passed",
        "peak_gb": 0.0,
        "answer": 42,
        "skipped": {"a kernel": "needs CUDA, the device is cpu"},
    }


@pytest.mark.slow
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_an_identity_that_breaks_fails_with_exit_1(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], value: float
) -> None:
    with_check(monkeypatch, lambda measured: measured.identity("difference", value, 0.5))
    assert command.main(["--tiny", "tower"]) == 1
    (line,) = lines_of(capfd.readouterr().out)
    assert line["status"] == "failed"
    assert line["error"].startswith("BrokenIdentity: difference is")


@pytest.mark.slow
def test_a_check_that_raises_fails_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def check(measured: Any) -> None:
        raise KeyError("first")

    with_check(monkeypatch, check)
    assert command.main(["--tiny", "--group", "3"]) == 1
    assert [line["error"] for line in lines_of(capfd.readouterr().out)] == ["KeyError: 'first'"] * 2


def test_a_name_that_is_no_check_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--tiny", "towers"]) == 2
    seen = capfd.readouterr()
    assert seen.out == ""
    assert "there is no check 'towers'" in seen.err


def test_without_a_gpu_only_tiny_runs(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["tower"]) == 2
    seen = capfd.readouterr()
    assert seen.out == ""
    assert "no CUDA device" in seen.err


def test_a_package_that_is_missing_is_named_and_nothing_passes_without_it() -> None:
    check = replace(running.CHECKS[0], needs=("torch", "no_such_package"))
    line = running.run(check, is_tiny=True, device="cpu")
    assert line["status"] == "failed"
    assert line["skipped"] == {"no_such_package": "not installed; see scripts/gather_wheels.py"}


@pytest.mark.slow
def test_the_peak_is_that_of_live_tensors(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    found = []

    def check(measured: Any) -> None:
        held = torch.zeros(1_000_000)  # 4 MB
        measured.begin_peak()
        first = torch.ones(500_000)  # 2 MB
        del first
        second = torch.ones(250_000)  # 1 MB
        found.append(measured.end_peak())
        del held, second
        measured.begin_peak()
        found.append(measured.end_peak())

    with_check(monkeypatch, check)
    assert command.main(["--tiny", "tower"]) == 0
    assert found == [0.006, 0.0]
    assert lines_of(capfd.readouterr().out)[0]["peak_gb"] == 0.006


def made(**changes: Any) -> Any:
    settings = {"device": torch.device("cpu"), "dtype": torch.float32, "is_tiny": True, "budget": 60.0}
    return measuring.Measurement(**settings | changes)


def test_cases_end_with_the_budget() -> None:
    measured = made(budget=10.0)
    assert measured.has_time("short", 5)
    assert not measured.has_time("long", 11)
    assert measured.skipped == {"long": "the check's 10 s were spent"}


def test_the_first_case_begins_whatever_is_left() -> None:
    measured = made(budget=-1.0)
    assert measured.has_time("first", 5) and not measured.has_time("second")
    assert list(measured.skipped) == ["second"]


def test_the_tower_has_a_case_where_its_time_was_spent_before() -> None:
    measured = made(budget=0.0)
    answers.tower(measured)
    assert [row["case"] for row in measured.figures["cases"]] == ["windows", "one call"]


def test_bars_hold_on_gpus_at_real_size_only(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = made()
    measured.at_least("speed", 1.0, 2.0)
    assert measured.bars == []
    real = made(device=torch.device("cuda"), is_tiny=False)
    real.at_least("speed", 1.0, 2.0)
    real.at_most("share", 0.5, 0.5)
    assert [bar["met"] for bar in real.bars] == [False, True]


@in_one_test(
    ("name", "peak"),
    [("NVIDIA H200", 989.0), ("NVIDIA H100 80GB HBM3", 989.0), ("NVIDIA H100 PCIe", 756.0),
     ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA GeForce RTX 4090", 165.0), ("another", None)],
)  # fmt: skip
def test_peaks_go_by_the_name_of_the_device(name: str, peak: float | None) -> None:
    assert measuring.peak_tflops(name) == peak


def test_operations_are_counted_without_views() -> None:
    table = torch.ones(3, 4)
    with measuring.Operations() as counted:
        total = (table.T @ table).sum()  # transposing is a view
        float(total)
    assert (counted.computed, counted.reads) == (2, 1)


def test_flops_are_twice_the_multiply_adds() -> None:
    assert measuring.flops_of(lambda: torch.ones(3, 5) @ torch.ones(5, 7)) == 2 * 3 * 5 * 7


def test_the_page_is_what_the_script_writes() -> None:
    text = page.FILE.read_text(encoding="utf-8")
    assert page.page(page.results_in(results.FOLDER)) == text, "run: python -m benchmarks.gpu.page"


@pytest.mark.slow
def test_the_page_shows_results_of_gpus_at_real_size_alone(tmp_path: Path) -> None:
    stamp = {"date": "2026-11-24", "versions": {"torch": "2.11", "commit": "abc"}}
    bar = {"figure": "speed", "value": 1.0, "bar": "at least 2", "met": False}
    line = {"check": "tower", "group": 2, "status": "failed", "seconds": 3.5, "peak_gb": 1.25, "bars": [bar],
            "cases": [{"case": "windows", "ms": 7.5}], "skipped": {}, **stamp}  # fmt: skip
    for name, kind, is_tiny in (("h200", "cuda", False), ("tiny", "cuda", True), ("cpu", "cpu", True)):
        result = {"device": name, "type": kind, "is_tiny": is_tiny, "checks": {"tower": line}}
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    text = page.page(page.results_in(tmp_path))
    assert "### h200" in text and "### tiny" not in text and "### cpu" not in text
    assert "| `tower` | failed | 3.5 | 1.25 | speed 1 (at least 2, **not met**) | 2026-11-24 | `abc` |" in text
    assert "| cases | case windows, ms 7.5 |" in text
    assert "No result of a GPU" in page.page([]) and "No result of a GPU" not in text


@pytest.mark.slow
def test_a_check_that_runs_again_replaces_its_line(tmp_path: Path) -> None:
    lines = [{"check": "tower", "seconds": 1.0}, {"check": "unets", "seconds": 2.0}]
    path = results.write(tmp_path, "cpu", lines, is_tiny=True)
    assert results.write(tmp_path, "cpu", [{"check": "tower", "seconds": 3.0}], is_tiny=True) == path
    checks = json.loads(path.read_text())["checks"]
    assert {name: line["seconds"] for name, line in checks.items()} == {"tower": 3.0, "unets": 2.0}
    assert checks["tower"]["versions"]["torch"] == results.installed()["torch"]
    assert path.name.endswith("_tiny.json")


@pytest.mark.slow  # imports diffusers, and counts on the meta device
def test_the_sizes_are_those_of_the_published_models() -> None:
    """Parameters and FLOPs of a forward pass as they were counted from the checkpoints' own configs."""
    import diffusers
    import transformers

    library: Any = diffusers
    others: Any = transformers
    sizes = importlib.import_module("benchmarks.gpu.sizes")

    def billions(network: Any) -> float:
        return float(round(sum(parameter.numel() for parameter in network.parameters()) / 1e9, 3))

    with torch.device("meta"):
        sd35 = library.SD3Transformer2DModel(**sizes.SD35)
        inputs = {"hidden_states": torch.empty(1, 16, 64, 64), "timestep": torch.empty(1),
                  "encoder_hidden_states": torch.empty(1, 333, 4096),
                  "pooled_projections": torch.empty(1, 2048)}  # fmt: skip
        flops = measuring.flops_of(lambda: sd35(**inputs))
        unets = [library.UNet2DConditionModel(**settings) for settings in (sizes.SD15, sizes.SDXL)]
        qwens = []
        for name, settings in (("Qwen2_5_VL", sizes.QWEN25_7B), ("Qwen2VL", sizes.QWEN2_2B)):
            config = getattr(others, f"{name}Config")(**settings)
            qwens.append(getattr(others, f"{name}ForConditionalGeneration")._from_config(config, dtype=torch.bfloat16))
    qwens[1].tie_weights()
    assert (billions(sd35), round(flops / 1e12, 2)) == (2.243, 2.44)
    assert [billions(network) for network in unets] == [0.860, 2.567]
    assert [(billions(model), billions(model.model.visual)) for model in qwens] == [(8.292, 0.677), (2.209, 0.665)]


@pytest.mark.slow  # makes a model
def test_needed_flops_are_those_of_one_causal_row() -> None:
    """An answer of n tokens reads n - 1; torch counts every pair of a row, a causal mask needs (T + 1) / 2T of them."""
    building, answers = (importlib.import_module(f"benchmarks.gpu.{name}") for name in ("building", "answers"))
    policy = building.qwen(made())
    model, length = policy._model.eval(), 24
    tokens = torch.ones(1, length, dtype=torch.int64)
    with torch.no_grad():
        counted = measuring.flops_of(lambda: model.model.language_model(input_ids=tokens, use_cache=False))
    pairs = answers.attention_flops(model, 20, 1, 5)
    linear = answers.forward_flops(model, 20, 1, 5) - pairs
    assert linear + pairs * 2 * length / (length + 1) == counted


@pytest.mark.slow  # all twelve checks
def test_all_checks_pass_at_small_sizes_on_the_cpu() -> None:
    run = [sys.executable, "-m", "benchmarks.gpu", "--tiny"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=600)
    lines = lines_of(done.stdout)
    assert [line["check"] for line in lines] == NAMES
    assert [line for line in lines if line["status"] != "passed"] == [], done.stderr[-2000:]
    assert done.returncode == 0
    for line in lines:
        assert set(line) - {"check", "group", "status", "seconds", "peak_gb", "skipped"}, "a figure of its own"
        assert line["peak_gb"] > 0


@in_one_test(
    ("name", "kind"),
    [("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "matrix products"),
     ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
     ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "copies"),
     ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>", "sums and norms"),
     ("void at::native::vectorized_elementwise_kernel<4, at::native::pow_tensor_scalar>", "elementwise"),
     ("triton_poi_fused_add_mul_3", "compiled"), ("ampere_sgemm_128x64", "matrix products"), ("other", "others")],
)  # fmt: skip
def test_kernels_are_told_apart_by_their_names(name: str, kind: str) -> None:
    assert measuring.kernel(name) == kind


def test_a_case_that_lacks_memory_is_skipped_and_what_it_held_is_freed() -> None:
    measured, held = made(), list[weakref.ref[torch.Tensor]]()

    def case() -> None:
        tensor = torch.ones(3)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")

    contexts: list[Any] = [reported(), nullcontext()]
    for number, error in enumerate(contexts):
        with measured.may_lack_memory(f"large {number}"), error:
            case()
    assert measured.skipped == {f"large {n}": "out of memory: CUDA out of memory. Tried to allocate" for n in range(2)}
    assert [one() for one in held] == [None, None]
