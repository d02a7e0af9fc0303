"""vLLM as the inference engine: a separate server that samples answers over HTTP and receives the weights."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self
from uuid import uuid4
from weakref import finalize

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, RunError

from ...encoding.inputs import pad_rows
from ..completions import Completions
from ..sampling import Support
from .http import JsonServer, Refused
from .protocol import LARGEST_BIAS, Answer, Question, SamplingParams, answer_of, body_of
from .weights import fingerprint, temporary_folder

if TYPE_CHECKING:
    from .tiny_server import Twin

log = logging.getLogger(__name__)
GENERATE = "/inference/v1/generate"


@dataclass(frozen=True, kw_only=True)
class Vllm(Checked):
    """The settings of a `vllm serve` of the run's model at `url`; `docs/engines.md` says how to start it."""

    name: Literal["vllm"]  # the inference engine
    url: str = "http://127.0.0.1:8000"  # where `vllm serve` listens
    # Where weights are written for the server, which must see the folder under the same path; null: a temporary folder
    # of this machine.
    folder: str | None = None
    concurrency: Annotated[int, Field(ge=1)] = 256  # answers that are requested at once
    timeout_seconds: Annotated[float, Field(gt=0)] = 1800.0  # how long one request may take in all
    retries: Annotated[int, Field(ge=0)] = 6  # how often a refused connection is tried again; 40 wait for five minutes

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for a wrong URL."""
        super().__post_init__()
        self.server()

    def server(self) -> JsonServer:
        """Returns a client of the server."""
        return JsonServer(self.url, self.timeout_seconds, self.retries)

    def tiny(self, model: Path, load: Callable[[str], "Twin"]) -> Self:
        """Returns the same settings for a server on this machine, which serves the twin in the folder `model`.

        The server runs as long as the folder is there. `load` makes the policy of a folder.
        """
        from .tiny_server import TinyVllm, serve

        return replace(self, url=serve(TinyVllm(model, load).answer, model.is_dir), folder=None)


@dataclass
class VllmEngine:
    """The client of a vLLM server: sends it the policy's weights, and samples answers with them."""

    settings: Vllm
    num_tokens: int  # of the model's vocabulary
    _server: JsonServer = field(init=False, repr=False)
    _model: str = field(default="", init=False, repr=False)  # the name in requests: of the model, or of the adapter
    _weights: tuple[int, ...] | None = field(default=None, init=False, repr=False)  # as the server has them
    _num_syncs: int = field(default=0, init=False, repr=False)
    _name: str = field(default_factory=lambda: f"mmrl-{uuid4().hex[:12]}", init=False, repr=False)  # of this process
    _folders: list[Path] = field(default_factory=list, init=False, repr=False)  # of weights, the newest last
    _adapters: list[str] = field(default_factory=list, init=False, repr=False)  # that the server has of this run

    def __post_init__(self) -> None:
        self._server = self.settings.server()
        goodbye = replace(self._server, timeout_seconds=min(self.settings.timeout_seconds, 10.0), retries=0)
        finalize(self, _clear, goodbye, self._adapters, self._folders)

    def generate(
        self, questions: Sequence[Question], prompt_of: Sequence[int], seeds: Sequence[int], sampling: SamplingParams
    ) -> Completions:
        """Samples n answers: answer i to question `prompt_of[i]`, by `seeds[i]`.

        Raises ConfigError where no server answers or the server reads prompts as other tokens, and RunError where the
        server fails.
        """
        assert self._model, "follow() comes first"

        def request(number: int) -> Answer:
            question = questions[prompt_of[number]]
            reply = self._server.post(GENERATE, body_of(self._model, question, sampling, seeds[number]))
            return answer_of(reply, question, sampling, self.num_tokens)

        pool = ThreadPoolExecutor(min(self.settings.concurrency, len(seeds)))
        try:
            answers = list(pool.map(request, range(len(seeds))))
        finally:
            pool.shutdown(cancel_futures=True)
        return _completions(answers, sampling)

    def follow(self, tensors: Mapping[str, Tensor], export: Callable[[Path], None], probe: int) -> None:
        """Sends the server the weights now in place, where it has other weights.

        Args:
            tensors: the trained ones. export: writes a folder with them, a model's or an adapter's.
            probe: any token, to find out of which distribution the server's log-probs are.
        """
        if not self._model:
            model = self._base_model()
            self._check_log_probs(model, probe)
            self._model = model
        now = fingerprint(tensors.values())
        if now == self._weights:
            return
        self._weights = None  # unknown if this fails
        name = f"{self._name}-{self._num_syncs}"
        self._num_syncs += 1  # of a failed sync as well: the server may hold a part of it under its name
        self._folders.append(self._folder() / name)
        self._folders[-1].mkdir(parents=True)
        export(self._folders[-1])
        if (self._folders[-1] / "adapter_config.json").is_file():
            self._load_adapter(name, self._folders[-1])
        else:
            self._reload(self._folders[-1])
        while len(self._folders) > 1:
            shutil.rmtree(self._folders.pop(0), ignore_errors=True)
        self._weights = now
        log.info("the vLLM server at %s has the weights of sync %d", self.settings.url, self._num_syncs)

    def _folder(self) -> Path:
        if self.settings.folder is not None:
            return Path(self.settings.folder).expanduser().absolute()
        return temporary_folder()

    def _base_model(self) -> str:
        """Returns the name of the served model. Raises ConfigError where the server names none."""
        reply = self._server.get("/v1/models")
        cards = reply.get("data") if isinstance(reply, dict) else None
        cards = cards if isinstance(cards, list) else []
        names = [card.get("id") for card in cards if isinstance(card, dict) and card.get("parent") is None]
        if not names or not isinstance(names[0], str):
            raise ConfigError(f"engine.url: {self.settings.url}/v1/models names no model; is it a vLLM server?")
        return names[0]

    def _check_log_probs(self, model: str, token: int) -> None:
        """Raises ConfigError where the server's log-probs are not those of the distribution that it samples from.

        A bias makes one token the only choice, so that its processed log-prob is 0. Raw log-probs cannot be near 0 for
        two tokens at one place, so two tokens are tried. (With `top_k` alone, equally likely tokens would all stay, and
        in bfloat16 many tokens are equally likely.)
        """
        question, sampling = Question((token,), (token,), ()), SamplingParams(1.0, 1.0, 1, 0.0, 1, (), (), ())
        for only in (token, 1 if token == 0 else 0):
            body = body_of(model, question, sampling, seed=0)
            body["sampling_params"]["logit_bias"] = {str(only): LARGEST_BIAS}
            try:
                reply = self._server.post(GENERATE, body)
            except Refused as error:
                hints = {403: "start it with --enable-scale-out", 404: f"{GENERATE} is there from vLLM 0.32 on"}
                if error.status not in hints:
                    raise
                raise ConfigError(f"engine: the vLLM server samples nothing: {error}; {hints[error.status]}") from error
            answer = answer_of(reply, question, sampling, self.num_tokens)
            if answer.tokens != [only]:
                raise RunError(
                    f"engine: the vLLM server sampled token {answer.tokens[0]} for {only}; it ignores logit_bias"
                )
            if answer.log_probs[0] < -1e-3:
                raise ConfigError(
                    "engine: the vLLM server gives log-probs of another distribution than the one it samples from; "
                    "start it with --logprobs-mode processed_logprobs"
                )

    def _load_adapter(self, name: str, folder: Path) -> None:
        """Loads an adapter under a new name, so that no cache of the adapter before is used again."""
        try:
            self._server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except Refused as error:
            raise ConfigError(
                f"engine: the vLLM server does not take the adapter: {error}; start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank of at least this run's rank, "
                "and let it see engine.folder under the same path"
            ) from error
        self._model = name
        self._adapters.append(name)
        while len(self._adapters) > 1:
            _unload(self._server, self._adapters.pop(0))

    def _reload(self, folder: Path) -> None:
        """Reloads the whole model from its folder, and empties the server's caches.

        Raises ConfigError for several processes, and RunError where the server keeps a cache.
        """
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            count = torch.distributed.get_world_size()
            if count > 1:
                raise ConfigError(
                    f"modality.engine: {count} processes would each reload the server's weights while others sample; "
                    "train a LoRA (modality.lora), or all weights in one process"
                )
        try:
            self._server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            # the reload empties the worker's cache of encoded images, on which the scheduler would still count
            self._server.post("/reset_encoder_cache", {})
            reply = self._server.post("/reset_prefix_cache", {})
        except Refused as error:
            raise ConfigError(
                f"engine: the vLLM server does not reload its weights: {error}; start it with VLLM_SERVER_DEV_MODE=1, "
                "and let it see engine.folder under the same path"
            ) from error
        if isinstance(reply, dict) and reply.get("success") is False:
            raise RunError(
                "engine: the vLLM server keeps its prefix cache of the weights before: it is busy with other requests"
            )


def _unload(server: JsonServer, adapter: str) -> None:
    server.post("/v1/unload_lora_adapter", {"lora_name": adapter})


def _clear(server: JsonServer, adapters: Sequence[str], folders: Sequence[Path]) -> None:
    """Removes the adapters and folders that a run leaves, as far as the server still answers."""
    for adapter in adapters:
        with suppress(ConfigError, RunError):
            _unload(server, adapter)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _completions(answers: Sequence[Answer], sampling: SamplingParams) -> Completions:
    """Joins the server's answers, with the tokens that were left by truncation where it names them."""
    supports = [answer.support for answer in answers]
    is_truncated = sampling.top_p < 1 or sampling.top_k is not None or sampling.min_p > 0
    support = None
    if is_truncated and sampling.temperature > 0 and None not in supports:
        rows = [torch.tensor(ids, dtype=torch.int32) for masks in supports if masks is not None for ids in masks]
        support = Support(torch.cat(rows), torch.tensor([len(row) for row in rows]))
    return Completions(
        tokens=pad_rows([torch.tensor(answer.tokens) for answer in answers], 0, "right"),
        length=torch.tensor([len(answer.tokens) for answer in answers]),
        log_prob=pad_rows([torch.tensor(answer.log_probs) for answer in answers], 0, "right"),
        is_finished=torch.tensor([answer.is_finished for answer in answers]),
        support=support,
    )
