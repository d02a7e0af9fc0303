"""What commands that read no weights import, so that they answer at once."""

import subprocess
import sys

import pytest

IMPORTED = """
import contextlib, io, sys
from mmrl import cli
sys.argv = ["mmrl", *sys.argv[1:]]
with contextlib.redirect_stdout(io.StringIO()):
    try:
        cli.main()
    except SystemExit as ended:
        assert ended.code == 0, ended.code
print(*sys.modules)
"""
OF_WEIGHTS = {"accelerate", "datasets", "diffusers", "peft", "scipy", "torch.distributed.tensor", "transformers"}
OF_TENSORS = {"torch", "numpy", "torchvision", "open_clip", "matplotlib", "pyarrow", "pandas", *OF_WEIGHTS}


def imported(*arguments: str) -> set[str]:
    """Returns the modules that a process has imported after a command."""
    ended = subprocess.run([sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=True)
    assert "mmrl.cli" in ended.stdout.split()
    return set(ended.stdout.split())


@pytest.mark.slow
def test_light_commands_import_no_tensors() -> None:
    modules = "mmrl.cli, mmrl.commands.finished, mmrl.reporting.report, mmrl.run_directory.start"
    program = f"import sys, {modules}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not OF_TENSORS.intersection(ended.stdout.split())


@pytest.mark.slow
def test_the_version_is_told_without_tensors() -> None:
    assert not OF_TENSORS & imported("--version")


@pytest.mark.slow  # a process that imports torch for each
@pytest.mark.parametrize(
    "config",
    [
        "quickstart_agent",
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("flow_grpo_sd35", "grpo_qwen25vl_3b_refcoco")),
    ],
)
def test_checking_a_config_imports_only_torch(config: str) -> None:
    names = imported("check", config)
    assert "torch" in names
    assert not OF_WEIGHTS & names
