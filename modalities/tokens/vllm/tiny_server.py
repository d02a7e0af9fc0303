"""A small server on this machine with vLLM's protocol, which answers as a tiny twin does."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from werkzeug import Request, Response

from mmrl.media.pictures import StoredPicture
from mmrl.system import local_server

from ...encoding.inputs import EncodedPrompt
from ...encoding.positions import rope_positions
from ..backbone import Backbone
from ..completions import Completions, StoppingCriteria, uniforms
from ..generation import AnswerGenerator
from ..log_probs import OutputHead
from ..sampling import SamplingDistribution
from .prompts import content_of
from .protocol import BANNED_BIAS
from .tiny_features import read_items, read_prompt

# Every field that a request may have here, and its type: the twin knows no others, so that a wrong name is seen.
_REQUEST = {"model": str, "token_ids": list, "sampling_params": dict, "return_token_ids": bool, "stream": bool}
_PARAMETERS: dict[str, type | tuple[type, ...]] = {
    "n": int, "temperature": (int, float), "top_p": (int, float), "top_k": int, "min_p": (int, float), "seed": int,
    "max_tokens": int, "stop": list, "stop_token_ids": list, "logprobs": int, "logit_bias": dict,
    "skip_special_tokens": bool, "include_stop_str_in_output": bool,
}  # fmt: skip


class _Wrong(Exception):
    """An error of a request: a status and a message in the form of OpenAI's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Twin(Protocol):
    """The part of a vision-language policy that the server uses."""

    @property
    def backbone(self) -> Backbone: ...
    @property
    def head(self) -> OutputHead: ...
    @property
    def encoder(self) -> Any: ...
    def modules(self) -> Mapping[str, Any]: ...
    def decode(self, tokens: list[int]) -> str: ...
    def running(self) -> AbstractContextManager[None]: ...


@dataclass
class TinyVllm:
    """The handler of the server's requests; one request at a time uses the network."""

    model: Path
    load: Callable[[str], Twin]  # the policy of a folder, in float32 on the CPU
    has_scale_out: bool = True  # --enable-scale-out
    adapts_tower: bool = True  # --enable-tower-connector-lora
    adapters: dict[str, str] = field(default_factory=dict, init=False)  # their folders by name
    _weights: Path | None = field(default=None, init=False)  # of the whole model, where it was reloaded
    _policy: Twin = field(init=False, repr=False)
    _version: str = field(default="default", init=False)  # the name of the whole model's weights
    _active: str = field(default="", init=False)  # the weights in memory: the model, or one of the adapters
    _encoded: set[tuple[str, str]] = field(default_factory=set, init=False)  # images that the worker keeps
    _counted: set[tuple[str, str]] = field(default_factory=set, init=False)  # those that the scheduler counts as kept
    _is_dead: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def answer(self, method: str, path: str, body: Any) -> Any:
        """Returns the JSON of a response. Raises `_Wrong` for a request that vLLM would refuse."""
        routes: Mapping[tuple[str, str], Callable[[Any], Any]] = {
            ("GET", "/v1/models"): self._models,
            ("POST", "/inference/v1/generate"): self._generate,
            ("POST", "/v1/load_lora_adapter"): self._load_adapter,
            ("POST", "/v1/unload_lora_adapter"): self._unload_adapter,
            ("POST", "/collective_rpc"): self._reload,
            ("POST", "/reset_prefix_cache"): lambda _: {"success": True},
            ("POST", "/reset_encoder_cache"): self._reset_encoder_cache,
            ("POST", "/update_weight_version"): self._name_weights,
            ("GET", "/health"): lambda _: None,
        }
        if (method, path) not in routes:
            raise _Wrong(404, "Not Found")
        with self._lock, torch.no_grad():
            return routes[method, path](body)

    def _activate(self, name: str) -> None:
        """Loads the model, with the adapter of this name if it is one. Raises `_Wrong` for an unknown name."""
        if name not in (*self.adapters, str(self.model)):
            raise _Wrong(404, f"The model `{name}` does not exist.")
        if name == self._active:
            return
        self._policy = self.load(str(self._weights or self.model))
        if name in self.adapters:
            self._network.load_adapter(self.adapters[name])
            if not self.adapts_tower:
                _drop_tower(self._network)
        self._active = name

    @property
    def _network(self) -> Any:
        return self._policy.modules()["model"]

    def _models(self, _: Any) -> Any:
        name = str(self.model)
        cards = [{"id": name, "object": "model", "owned_by": "vllm", "root": name, "parent": None}]
        cards += [{"id": one, "object": "model", "owned_by": "vllm", "parent": name} for one in sorted(self.adapters)]
        return {"object": "list", "data": cards}

    def _load_adapter(self, body: Any) -> Any:
        name, path = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters:
            raise _Wrong(400, f"The lora adapter '{name}' has already been loaded.")
        if not (path / "adapter_config.json").is_file():
            raise _Wrong(404, f"No adapter found for {path}")
        self.adapters[name] = str(path)
        self._activate(name)
        return f"Success: LoRA adapter '{name}' added successfully."

    def _unload_adapter(self, body: Any) -> Any:
        name = body["lora_name"]
        if name not in self.adapters:
            raise _Wrong(404, f"The lora adapter '{name}' cannot be found.")
        del self.adapters[name]
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _reload(self, body: Any) -> Any:
        if body["method"] != "reload_weights":
            raise _Wrong(400, f"no method {body['method']!r}")
        self._weights, self._active = Path(body["kwargs"]["weights_path"]), ""
        self._activate(str(self.model))
        self._encoded.clear()
        return {"results": [None]}

    def _reset_encoder_cache(self, _: Any) -> None:
        self._encoded.clear()
        self._counted.clear()

    def _name_weights(self, body: Any) -> Any:
        self._version = str(body["new_version"])
        return {"success": True, "new_version": self._version}

    def _generate(self, body: Any) -> Any:
        images = [part["url"] for part in body.pop("content_parts", []) if part["type"] == "image_url"]
        items = read_items(body.pop("features")) if "features" in body else []
        if images and items:
            raise _Wrong(400, "content_parts and features are mutually exclusive")
        _check(body, _REQUEST)
        parameters = body["sampling_params"]
        _check(parameters, _PARAMETERS)
        if not self.has_scale_out:
            raise _Wrong(403, "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out.")
        name = body["model"]
        self._activate(name)
        owner = name if name in self.adapters and self.adapts_tower else ""
        self._keep({(owner, image) for image in (*images, *(item.name for item in items))})
        tokens = body["token_ids"]
        prompt = read_prompt(tokens, items, self._network.config) if items else self._read(tokens, images)
        completions = self._write(prompt, parameters)
        return _response(name, self._version, prompt.tokens, completions)

    def _keep(self, images: set[tuple[str, str]]) -> None:
        """Encodes images once, as long as scheduler and worker agree on which images are encoded."""
        self._is_dead = self._is_dead or bool(images & self._counted - self._encoded)
        if self._is_dead:
            raise _Wrong(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.")
        self._encoded |= images
        self._counted |= images

    def _read(self, tokens: Sequence[int], images: Sequence[str]) -> EncodedPrompt:
        """Returns the prompt that the model's processor makes of the text of the tokens."""
        policy = self._policy
        processor, text = policy.encoder.processor, policy.decode(list(tokens))
        pictures = [StoredPicture("an image", content=content_of(image)).load() for image in images]
        encoded = processor(text=[text], images=pictures or None, return_tensors="pt")
        read = encoded["input_ids"][0]
        types = encoded["mm_token_type_ids"][0].to(torch.int64)
        texts = ("input_ids", "attention_mask", "mm_token_type_ids")
        media = {key: value for key, value in encoded.items() if isinstance(value, Tensor) and key not in texts}
        positions = rope_positions(self._network.model, read, types, media, None)
        return EncodedPrompt(read, types, positions, int(positions.max()) + 1, media, None)

    def _write(self, prompt: EncodedPrompt, parameters: Mapping[str, Any]) -> Completions:
        policy, budget = self._policy, parameters["max_tokens"]
        biases = {int(token): bias for token, bias in parameters["logit_bias"].items()}
        banned = tuple(token for token, bias in biases.items() if bias == BANNED_BIAS)
        head = _biased(policy.head, biases)
        top_k, min_p = parameters["top_k"] or None, parameters["min_p"]
        if top_k == 1:  # all that are equally likely stay
            top_k, min_p = None, 1.0
        distribution = SamplingDistribution(parameters["temperature"], parameters["top_p"], top_k, min_p, banned)
        stopping = StoppingCriteria(
            tuple(parameters["stop_token_ids"]), tuple(parameters["stop"]), policy.decode, budget
        )
        count = parameters["n"]
        prompt_of = torch.zeros(count, dtype=torch.int64)
        uniform = uniforms([parameters["seed"] + number for number in range(count)], budget)
        with policy.running():
            completions = AnswerGenerator(policy.backbone, head, distribution, stopping, count).answers(
                [prompt], prompt_of, uniform
            )
        assert completions is not None, "there is a prompt"
        return completions


def _biased(head: OutputHead, biases: Mapping[int, float]) -> OutputHead:
    """Returns the head with biases of the tokens to be sampled; banned tokens are removed elsewhere."""
    bias = torch.zeros(len(head.weight)) if head.bias is None else head.bias.clone()
    for token, value in biases.items():
        bias[token] += max(0.0, value)
    return replace(head, bias=bias)


def _drop_tower(network: Any) -> None:
    for name, parameter in network.named_parameters():
        if ".visual." in name and "lora_B" in name:
            parameter.zero_()


def _response(model: str, version: str, prompt: Tensor, completions: Completions) -> dict[str, Any]:
    rows = [completions.select(torch.tensor([row])) for row in range(len(completions.length))]
    num_written = int(completions.length.sum())
    usage = {"prompt_tokens": len(prompt), "completion_tokens": num_written, "total_tokens": len(prompt) + num_written}
    said = {"request_id": "tiny", "model": model, "usage": usage, "prompt_token_ids": prompt.tolist()}
    choices = [_choice(number, version, row) for number, row in enumerate(rows)]
    return {**said, "output_mode": "tokens", "choices": choices}


def _choice(number: int, version: str, completion: Completions) -> dict[str, Any]:
    tokens, log_probs = completion.tokens[0].tolist(), completion.log_prob[0].tolist()
    mask = None
    if completion.support is not None:
        mask = [ids.tolist() for ids in completion.support.ids.split(completion.support.sizes.tolist())]
    content = [
        {"token_id": token, "logprob": value, "rank": None, "top_logprobs": []}
        for token, value in zip(tokens, log_probs, strict=True)
    ]
    return {
        "index": number,
        "finish_reason": "stop" if bool(completion.is_finished[0]) else "length",
        "stop_reason": None,
        "token_ids": tokens,
        "routed_experts": None,
        "sampling_mask": mask,
        "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
        "logprobs": {"content": content},
    }


def _check(body: Mapping[str, Any], fields: Mapping[str, type | tuple[type, ...]]) -> None:
    for name, value in body.items():
        if name not in fields or not isinstance(value, fields[name]):
            raise _Wrong(400, f"unknown field or wrong type: {name} = {value!r}")
    if missing := sorted(set(fields) - set(body)):
        raise _Wrong(400, f"missing fields: {', '.join(missing)}")


def serve(answer: Callable[[str, str, Any], Any], is_needed: Callable[[], bool]) -> str:
    """Serves what `answer` returns for method, path and body, for as long as it is needed; returns the URL."""

    def respond(request: Request) -> Response:
        try:
            return local_server.in_json(answer(request.method, request.path, request.json if request.data else None))
        except _Wrong as wrong:
            error = {"message": str(wrong), "type": "BadRequestError", "param": None, "code": wrong.status}
            return local_server.in_json({"error": error}, wrong.status)
        except (KeyError, ValueError, TypeError) as error:
            return local_server.in_json({"error": {"message": f"{type(error).__name__}: {error}", "code": 400}}, 400)

    return local_server.serve(respond, is_needed)
