"""One vLLM server as a run sees it: the model that it serves, the weights that it has, the answers that it samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmrl.core.contracts import ConfigError, RunError
from mmrl.system.json_server import JsonServer, Lost, Refused

from .protocol import LARGEST_BIAS, Answer, Question, SamplingParams, answers_of, body_of, versions_of

GENERATE = "/inference/v1/generate"


class Forgotten(Lost, RunError):
    """A server that no longer has the weights that it was given, since it was started anew."""


@dataclass
class Replica:
    """A server of the run's model; several of them have the same weights."""

    server: JsonServer
    num_tokens: int  # of the model's vocabulary
    base: str = field(default="", init=False)  # the name of the served model; empty before `meet`
    model: str = field(default="", init=False)  # the name in requests: of the model, or of the adapter in use
    version: str = field(default="", init=False)  # of the weights of the whole model that it was given; empty: none
    adapters: list[str] = field(default_factory=list, init=False)  # that it has of this run, the newest last

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Answers the many requests of the block together."""
        closed = self.server
        with closed.opened() as self.server:
            try:
                yield
            finally:
                self.server = closed

    def break_off(self) -> None:
        """Ends the requests that are under way, with an error where they are waited for."""
        self.server.break_off()

    def ask(self, question: Question, sampling: SamplingParams, seed: int, num_answers: int) -> list[Answer]:
        """Samples answers to one question, answer i by `seed + i`, in one request.

        Raises `Forgotten` where the server has other weights than it was given.
        """
        assert self.model, "meet() comes first"
        try:
            reply = self.server.post(GENERATE, body_of(self.model, question, sampling, seed, num_answers))
        except Refused as error:
            if error.status == 404 and self.model != self.base:
                raise Forgotten(f"engine: the vLLM server no longer has the adapter of this run: {error}") from error
            raise
        if self.version and (others := versions_of(reply) - {self.version}):
            raise Forgotten(
                f"engine: the vLLM server at {self.server.url} sampled by weights called {min(others)!r}, not by those "
                f"that it was given, {self.version!r}; it was started anew, or another run uses it"
            )
        return answers_of(reply, question, sampling, self.num_tokens, num_answers)

    def is_up(self) -> bool:
        """Returns whether the server answers and its engine lives; asks once."""
        try:
            replace(self.server, retries=0, timeout_seconds=min(self.server.timeout_seconds, 10.0)).get("/health")
        except (ConfigError, RunError):
            return False
        return True

    def meet(self, probe: int) -> None:
        """Finds out the served model, and of which distribution its log-probs are, by any token `probe`.

        Raises ConfigError where they are of another one, or where it serves another model than when it was met before.
        """
        base = self._base_model()
        if self.base and base != self.base:
            raise ConfigError(
                f"engine: the server at {self.server.url} serves {base!r} now, and served {self.base!r} before"
            )
        self._check_log_probs(base, probe)
        self.base, self.model, self.version, self.adapters = base, base, "", []

    def take(self, name: str, folder: Path) -> None:
        """Gives it the weights in a folder, an adapter's or a whole model's, under a name that was never used.

        Raises ConfigError where it does not take them, and RunError where it keeps a cache of the weights before.
        """
        if (folder / "adapter_config.json").is_file():
            self._load_adapter(name, folder)
        else:
            self._reload(name, folder)

    @property
    def weights(self) -> str:
        """Returns the name under which it has the run's weights."""
        return self.version or self.model

    def share(self, name: str, *, is_adapter: bool) -> None:
        """Samples by the weights that another process gave the server under this name."""
        if is_adapter:
            self.model = name
        else:
            self.version = name

    def sleep(self, level: int) -> None:
        """Frees the memory of its GPU: of the cache alone that may be moved (1), or of the weights too (2)."""
        self._developers("/sleep?level=" + str(level))

    def wake(self) -> None:
        """Takes the memory back."""
        self._developers("/wake_up")

    def clear(self) -> None:
        """Removes the run's adapters."""
        while self.adapters:
            self._unload(self.adapters.pop())

    def _developers(self, path: str) -> None:
        try:
            self.server.post(path, {})
        except Refused as error:
            raise ConfigError(
                f"engine.sleep: the vLLM server does not sleep and wake: {error}; start it with VLLM_SERVER_DEV_MODE=1 "
                "and --enable-sleep-mode"
            ) from error

    def _base_model(self) -> str:
        """Returns the name of the served model. Raises ConfigError where the server names none."""
        reply = self.server.get("/v1/models")
        cards = reply.get("data") if isinstance(reply, dict) else None
        cards = cards if isinstance(cards, list) else []
        names = [card.get("id") for card in cards if isinstance(card, dict) and card.get("parent") is None]
        if not names or not isinstance(names[0], str):
            raise ConfigError(f"engine.url: {self.server.url}/v1/models names no model; is it a vLLM server?")
        return names[0]

    def _check_log_probs(self, model: str, token: int) -> None:
        """Raises ConfigError where the server's log-probs are not those of the distribution that it samples from.

        A bias makes one token the only choice, so that its processed log-prob is 0. Raw log-probs cannot be near 0 for
        two tokens at one place, so two tokens are tried. (With `top_k` alone, equally likely tokens would all stay, and
        in bfloat16 many tokens are equally likely.)
        """
        question, sampling = Question((token,), (token,), ()), SamplingParams(1.0, 1.0, 1, 0.0, 1, (), (), ())
        for only in (token, 1 if token == 0 else 0):
            reply = self._biased(model, question, sampling, only)
            (answer,) = answers_of(reply, question, sampling, self.num_tokens)
            if answer.tokens != [only]:
                raise RunError(
                    f"engine: the vLLM server sampled token {answer.tokens[0]} for {only}; it ignores logit_bias"
                )
            if answer.log_probs[0] < -1e-3:
                raise ConfigError(
                    "engine: the vLLM server gives log-probs of another distribution than the one it samples from; "
                    "start it with --logprobs-mode processed_logprobs"
                )

    def _biased(self, model: str, question: Question, sampling: SamplingParams, only: int) -> Any:
        body = body_of(model, question, sampling, seed=0)
        body["sampling_params"]["logit_bias"] = {str(only): LARGEST_BIAS}
        try:
            return self.server.post(GENERATE, body)
        except Refused as error:
            hints = {403: "start it with --enable-scale-out", 404: f"{GENERATE} is there from vLLM 0.32 on"}
            if error.status not in hints:
                raise
            raise ConfigError(f"engine: the vLLM server samples nothing: {error}; {hints[error.status]}") from error

    def _load_adapter(self, name: str, folder: Path) -> None:
        """Loads an adapter under a new name, so that no cache of the adapter before is used again."""
        try:
            self.server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except Refused as error:
            raise ConfigError(
                f"engine: the vLLM server does not take the adapter: {error}; start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank of at least this run's rank, "
                "and let it see engine.folder under the same path"
            ) from error
        self.model = name
        self.adapters.append(name)
        while len(self.adapters) > 1:
            self._unload(self.adapters.pop(0))

    def _unload(self, adapter: str) -> None:
        self.server.post("/v1/unload_lora_adapter", {"lora_name": adapter})

    def _reload(self, name: str, folder: Path) -> None:
        """Reloads the whole model from its folder, names these weights, and empties the server's caches."""
        try:
            self.server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            # the reload empties the worker's cache of encoded images, on which the scheduler would still count
            self.server.post("/reset_encoder_cache", {})
            reply = self.server.post("/reset_prefix_cache", {})
            if isinstance(reply, dict) and reply.get("success") is False:
                raise RunError(
                    "engine: the vLLM server keeps its prefix cache of the weights before: it is busy with other "
                    "requests"
                )
            self.server.post("/update_weight_version", {"new_version": name})
        except Refused as error:
            raise ConfigError(
                f"engine: the vLLM server does not reload its weights: {error}; start it with VLLM_SERVER_DEV_MODE=1, "
                "let it serve this run's model, and let it see engine.folder under the same path"
            ) from error
        self.version = name
