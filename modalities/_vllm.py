"""vLLM as the engine that draws answers: a server of its own that is asked over HTTP and sent the weights."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal, Self
from uuid import uuid4
from weakref import finalize

import torch
from torch import Tensor

from mmrl.contracts import ConfigError, RunError
from mmrl.modalities._answers import Drawn
from mmrl.modalities._distribution import Support
from mmrl.modalities._fingerprint import fingerprint
from mmrl.modalities._http import JsonServer, Refused
from mmrl.modalities._inputs import pad_rows
from mmrl.modalities._vllm_protocol import Answer, Question, Sampling, answer_of, body_of

log = logging.getLogger(__name__)
GENERATE = "/inference/v1/generate"


@dataclass(frozen=True, kw_only=True)
class Vllm:
    """A `vllm serve` of the run's model at `url`; `docs/engines.md` says how to start it.

    Weights are handed over through `folder`, which the server must see under the same path; None: a temporary folder of
    this machine. `concurrency` answers are asked for at once. `timeout_seconds`: how long the server may say nothing;
    `retries`: how often a refused connection is tried again.
    """

    name: Literal["vllm"]
    url: str = "http://127.0.0.1:8000"
    folder: str | None = None
    concurrency: int = 256
    timeout_seconds: float = 1800.0
    retries: int = 6

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.retries < 0:
            raise ValueError(
                f"concurrency must be at least 1 and retries at least 0, got {self.concurrency}, {self.retries}"
            )
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be above 0, got {self.timeout_seconds}")
        self.server()

    def server(self) -> JsonServer:
        return JsonServer(self.url, self.timeout_seconds, self.retries)

    def tiny(self, model: Path, pixels: tuple[int | None, int | None]) -> Self:
        """The same with a server on this machine that answers with a tiny twin, as long as the folder `model` is there.

        `pixels`: bounds of an image's area.
        """
        from mmrl.modalities._tiny_vllm import TinyVllm, serve

        return replace(self, url=serve(TinyVllm(model, pixels).answer, model.is_dir), folder=None)


@dataclass
class VllmEngine:
    """The server as a policy uses it: it follows the policy's weights and draws answers."""

    settings: Vllm
    _server: JsonServer = field(init=False, repr=False)
    _model: str = field(default="", init=False, repr=False)  # what requests ask for: the model, or the present adapter
    _has_adapter: bool = field(default=False, init=False, repr=False)
    _weights: tuple[int, ...] | None = field(default=None, init=False, repr=False)  # as the server has them
    _num_syncs: int = field(default=0, init=False, repr=False)
    _name: str = field(default_factory=lambda: f"mmrl-{uuid4().hex[:12]}", init=False, repr=False)  # of this process
    _own_folder: Path | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._server = self.settings.server()

    def draw(
        self, questions: Sequence[Question], prompt_of: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> Drawn:
        """n answers: answer i to question `prompt_of[i]`, drawn by `seeds[i]`.

        Raises ConfigError where nothing answers or prompts are read otherwise, RunError where the server fails.
        """
        assert self._model, "follow() comes first"

        def ask(number: int) -> Answer:
            question = questions[prompt_of[number]]
            said = self._server.post(GENERATE, body_of(self._model, question, sampling, seeds[number]))
            return answer_of(said, question, sampling)

        pool = ThreadPoolExecutor(min(self.settings.concurrency, len(seeds)))
        try:
            answers = list(pool.map(ask, range(len(seeds))))
        finally:
            pool.shutdown(cancel_futures=True)
        return _drawn(answers, sampling)

    def follow(self, tensors: Mapping[str, Tensor], export: Callable[[Path], None], probe: int) -> None:
        """Gives the server the weights in place, where it has others.

        Args:
            tensors: the trained ones. export: writes a folder with them, a model's or an adapter's.
            probe: any token, to find out what the server's log-probs are of.
        """
        if not self._model:
            self._model = self._base_model()
            self._check_log_probs(probe)
        now = fingerprint(tensors.values())
        if now == self._weights:
            return
        self._weights = None  # unknown if this fails
        folder = self._folder() / f"{self._name}-{self._num_syncs}"
        before = self._folder() / f"{self._name}-{self._num_syncs - 1}"
        folder.mkdir(parents=True)
        export(folder)
        if (folder / "adapter_config.json").is_file():
            self._load_adapter(folder)
        else:
            self._reload(folder)
        if before.is_dir():
            shutil.rmtree(before)
        self._num_syncs += 1
        self._weights = now
        log.info("the vLLM server at %s has the weights of sync %d", self.settings.url, self._num_syncs)

    def _folder(self) -> Path:
        if self.settings.folder is not None:
            return Path(self.settings.folder).expanduser().absolute()
        if self._own_folder is None:
            self._own_folder = Path(mkdtemp(prefix="mmrl-weights-"))
            finalize(self, shutil.rmtree, self._own_folder, ignore_errors=True)
        return self._own_folder

    def _base_model(self) -> str:
        said = self._server.get("/v1/models")
        cards = said.get("data", []) if isinstance(said, dict) else []
        names = [card.get("id") for card in cards if isinstance(card, dict) and card.get("parent") is None]
        if not names or not isinstance(names[0], str):
            raise ConfigError(f"engine.url: {self.settings.url}/v1/models names no model; is it a vLLM server?")
        return names[0]

    def _check_log_probs(self, token: int) -> None:
        """Of one token that may be drawn, the processed log-prob is 0 and the raw one is not."""
        question = Question((token,), (token,), ())
        sampling = Sampling(1.0, 1.0, 1, 0.0, 1, (), (), ())
        try:
            said = self._server.post(GENERATE, body_of(self._model, question, sampling, seed=0))
        except Refused as error:
            if error.status != 404:
                raise
            raise ConfigError(f"engine.url: {error}; {GENERATE} is there from vLLM 0.32 on") from error
        (log_prob,) = answer_of(said, question, sampling).log_probs
        if log_prob < -1e-3:
            raise ConfigError(
                "engine: the vLLM server gives log-probs of another distribution than the one that it draws from; "
                "start it with --logprobs-mode processed_logprobs"
            )

    def _load_adapter(self, folder: Path) -> None:
        """Under a new name, so that nothing that was cached for the one before is used again."""
        name = f"{self._name}-{self._num_syncs}"
        try:
            self._server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except Refused as error:
            raise ConfigError(
                f"engine: the vLLM server does not take the adapter: {error}; start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank of at least this run's rank, "
                "and let it see engine.folder under the same path"
            ) from error
        if self._has_adapter:
            self._server.post("/v1/unload_lora_adapter", {"lora_name": self._model})
        self._model, self._has_adapter = name, True

    def _reload(self, folder: Path) -> None:
        """The whole model from its folder; what was cached of the weights before is thrown away."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            count = torch.distributed.get_world_size()
            if count > 1:
                raise ConfigError(
                    f"modality.engine: {count} processes would each reload the server's weights while others draw; "
                    "train a LoRA (modality.lora), or all weights in one process"
                )
        try:
            self._server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            said = self._server.post("/reset_prefix_cache", {})
        except Refused as error:
            raise ConfigError(
                f"engine: the vLLM server does not reload its weights: {error}; start it with VLLM_SERVER_DEV_MODE=1, "
                "and let it see engine.folder under the same path"
            ) from error
        if isinstance(said, dict) and said.get("success") is False:
            raise RunError("engine: the vLLM server keeps its prefix cache of the weights before: it is at other work")


def _drawn(answers: Sequence[Answer], sampling: Sampling) -> Drawn:
    supports = [answer.support for answer in answers]
    is_truncated = sampling.top_p < 1 or sampling.top_k is not None or sampling.min_p > 0
    support = None
    if is_truncated and sampling.temperature > 0 and None not in supports:
        rows = [torch.tensor(ids, dtype=torch.int32) for masks in supports if masks is not None for ids in masks]
        support = Support(torch.cat(rows), torch.tensor([len(row) for row in rows]))
    return Drawn(
        tokens=pad_rows([torch.tensor(answer.tokens) for answer in answers], 0, "right"),
        length=torch.tensor([len(answer.tokens) for answer in answers]),
        log_prob=pad_rows([torch.tensor(answer.log_probs) for answer in answers], 0, "right"),
        is_finished=torch.tensor([answer.is_finished for answer in answers]),
        support=support,
    )
