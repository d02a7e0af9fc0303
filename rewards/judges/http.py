"""A reward that stands on another machine, behind HTTP."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, Placement, RewardBatch, RunError
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.likelihoods import thought_needs
from mmrl.core.reward_batches import LOADED, MEDIA
from mmrl.core.wire import SENT, WireError
from mmrl.core.wire_media import Pixels
from mmrl.system.json_server import JsonServer, Lost, Refused, TimedOut
from mmrl.system.spelling import did_you_mean

from ..base.reward_protocols import ProtocolName, Question, ServerProtocol, Unjudged, protocol_of

log = logging.getLogger(__name__)
_STARTING = 6  # tries of a connection when the run begins: 23 seconds
_TRIES = 3  # of a request that the server fails at with status 500, which may be the request's fault
_OVERLOADED = (429, 502, 503, 504)  # statuses of a server, or of a proxy before it, that may answer later
_PAUSE = 10.0  # seconds for which a server that was waited for in vain is not asked again


class _Outage:
    """How long all servers have been silent, over all threads; so that samples that fail wait once, not each."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._since: float | None = None
        self._last = 0.0
        self._words = ""

    def begin(self, failure: Exception) -> bool:
        """Notes a failure; returns whether there is time for another try."""
        with self._lock:
            self._last, self._words = time.monotonic(), f"{failure}; waited for {self._seconds:g} seconds"
            self._since = self._last if self._since is None else self._since
            return self._last - self._since < self._seconds

    def end(self) -> None:
        """Notes an answer."""
        with self._lock:
            self._since = None

    def verdict(self) -> str | None:
        """Returns the last failure where the servers were waited for in vain, and just now; else None."""
        with self._lock:
            now = time.monotonic()
            is_over = self._since is not None and self._last - self._since >= self._seconds
            return self._words if is_over and now - self._last < _PAUSE else None


@dataclass(frozen=True)
class Http(Checked):
    """The score of a reward that another process or machine serves, by `mmrl serve` or by a server of another trainer.

    Each request holds `batch_size` samples at most, whole groups where `granularity` is group; `concurrency` requests
    are under way at once, spread over the servers of `url`. What is sent is what `needs` names, the texts of the
    prompts and their targets. Images and videos go as float32, so that the server's scores are those that the reward
    would give in the run; `pixels: uint8` sends a quarter of it, rounded to 256 steps. The range is unbounded until you
    give both ends.

    A request that finds no connection, no answer in `timeout_seconds`, or an overloaded server (429, 502, 503, 504) is
    sent again after 0.5, 1, 2 ... 8 seconds, to the next server where there are several, for `outage_seconds`; one that
    fails with status 500 three times. Then its samples are masked and counted, as where any reward cannot judge, and
    `scoring.max_failed_share` may end the run. A sample that the server cannot judge is masked by itself. Scores are
    matched by the ids of samples (`protocol: mmrl`), or by their place in a list of the right length.

    `protocol`: mmrl is that of `mmrl serve`; flow_factory that of Flow-Factory's reward server; flow_grpo that of
    flow_grpo's servers with JSON in place of pickle, for which a file beside the server is needed. docs/serving.md has
    all three. When the run begins, a server of `mmrl serve` must be there, and serve `reward` with this granularity.

    Raises ValueError for an address of another form, a protocol without a name of the reward, and needs or a
    granularity that the protocol has no words for.
    """

    source: ClassVar[str] = "reward servers: Black et al. 2023 (ddpo-pytorch), github.com/kvablack/LLaVA-server"
    differentiable: ClassVar[bool] = False

    url: str | tuple[str, ...]  # http://host:port, or https; several share the requests
    reward: str = ""  # the name under which the reward is served; of protocol mmrl, which needs it
    protocol: ProtocolName = "mmrl"  # the language of the server
    range: tuple[float, float] = (-math.inf, math.inf)  # both ends of the score, [low, high]
    granularity: Granularity = "sample"  # what the served reward judges: sample, turn, episode or group
    # What is sent beside prompts and targets, and must be there: images, videos, texts, prompt.image, target.answer ...
    needs: frozenset[str] = frozenset({"service"})
    batch_size: Annotated[int, Field(ge=1)] | None = 32  # samples of one request
    concurrency: Annotated[int, Field(ge=1)] = 4  # requests at once
    timeout_seconds: Annotated[float, Field(gt=0)] = 300.0  # in which one request is answered
    outage_seconds: Annotated[float, Field(ge=0)] = 600.0  # for which silent servers are waited for
    token_file: str | None = None  # a file with the servers' token; null: none
    pixels: Pixels = "float32"  # of images and videos; of protocol mmrl

    _protocol: ServerProtocol = field(init=False, repr=False, compare=False)
    _outage: _Outage = field(init=False, repr=False, compare=False)
    _turns: "Iterator[int]" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.range[0] < self.range[1]:
            raise ValueError(f"range must be [low, high] with low < high, got {list(self.range)}")
        if self.granularity not in ("sample", "turn", "episode", "group"):
            raise ValueError(f"granularity must be sample, turn, episode or group, got {self.granularity!r}")
        if unsent := sorted(self.needs & set(MEDIA) - SENT):
            raise ValueError(f"needs: {unsent[0]} are not sent to servers")
        if thought := thought_needs(self.needs):
            raise ValueError(f"needs: what the policy thinks of its answers is not sent to servers, got {thought[0]}")
        if (self.protocol == "mmrl") != bool(self.reward):
            raise ValueError(
                f"reward names what a server of protocol mmrl serves, and goes with it alone, got "
                f"reward {self.reward!r} and protocol {self.protocol}"
            )
        object.__setattr__(self, "needs", (self.needs - {"model"}) | {"service"})
        protocol = protocol_of(
            self.protocol,
            reward=self.reward,
            needs=self.needs,
            granularity=self.granularity,
            pixels=self.pixels,
            timeout_seconds=self.timeout_seconds,
        )
        object.__setattr__(self, "_protocol", protocol)
        object.__setattr__(self, "_outage", _Outage(self.outage_seconds))
        object.__setattr__(self, "_turns", itertools.count())
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise ValueError(f"url must name one server or several different ones, got {self.url!r}")
        for url in self.urls:
            self._server(url, {})

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,) if isinstance(self.url, str) else tuple(self.url)

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns how many requests may be under way."""
        return RewardDeclaration(concurrency=self.concurrency)

    def _server(self, url: str, headers: dict[str, str], *, retries: int = 0) -> JsonServer:
        """Returns the client of a server. Raises ValueError for an address of another form."""
        return JsonServer(
            url,
            self.timeout_seconds,
            retries,
            section="rewards.http",
            page="docs/serving.md",
            schemes=("http", "https"),
            headers=headers,
        )

    def _headers(self) -> dict[str, str]:
        """Returns the token as a header. Raises ConfigError for a file that cannot be read."""
        if self.token_file is None:
            return {}
        try:
            token = Path(self.token_file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"rewards.http.token_file {self.token_file} cannot be read: {error}") from error
        return {"Authorization": f"Bearer {token}"}

    def prepare(self, placement: Placement) -> None:
        """Asks each server of `mmrl serve` what it serves; nothing is known of others.

        Raises ConfigError where none answers, or it serves no such reward, of another granularity, or one that needs
        what is not sent.
        """
        for url in self.urls if self.protocol == "mmrl" else ():
            try:
                served = self._server(url, self._headers(), retries=_STARTING).get("/v1/rewards")
                self._check_served(url, {one["name"]: one for one in served["rewards"]})
            except Refused as error:
                raise ConfigError(f"rewards.http: {error}") from error
            except (KeyError, TypeError) as error:
                raise ConfigError(f"rewards.http.url: {url} is no server of `mmrl serve`") from error

    def _check_served(self, url: str, served: dict[str, Any]) -> None:
        if self.reward not in served:
            raise ConfigError(
                f"rewards.http.reward: {url} serves no {self.reward!r}{did_you_mean(self.reward, served)}"
            )
        judged, needed = served[self.reward]["granularity"], set(served[self.reward]["needs"]) - set(LOADED)
        if judged != self.granularity:
            raise ConfigError(
                f"rewards.http.granularity: {self.reward!r} of {url} judges {judged}s, got {self.granularity!r}"
            )
        if lacking := sorted(needed - self.needs):
            raise ConfigError(
                f"rewards.http.needs: {self.reward!r} of {url} also needs {', '.join(lacking)}; "
                f"got {', '.join(sorted(self.needs - {'service'})) or 'nothing'}"
            )

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward with a server in this process, which serves a small twin of the reward, if it ships.

        Another reward is replaced by numbers from the bytes of each sample.
        """
        from ..base.tiny_reward_server import serve_tiny

        url = serve_tiny(self.reward, self.granularity, self.range, seed, folder)
        return replace(self, url=url, token_file=None)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32, NaN for the samples that the server could not judge.

        Raises:
            Unjudged: the servers did not answer in time, or could judge none of the samples.
            ConfigError: the server refuses the request, such as for a wrong token.
        """
        values, reasons = torch.full((len(batch),), torch.nan), []
        for question in self._protocol.questions(batch):
            try:
                scores = self._protocol.scores(self._ask(question), len(question.rows))
            except WireError as error:
                raise Unjudged(str(error)) from error
            for row, score in zip(question.rows, scores, strict=True):
                if score.score is None:
                    reasons.append(score.reason or "no reason")
                else:
                    values[row] = score.score
        if reasons and (len(reasons) == len(batch) or _num_units(self.granularity, batch) == 1):
            raise Unjudged(reasons[0])
        if reasons:
            log.warning("%d of %d samples could not be judged by the server: %s", len(reasons), len(batch), reasons[0])
        return values

    def _ask(self, question: Question) -> Any:
        """Returns the reply to a request, which is sent again where a server is silent or overloaded."""
        if verdict := self._outage.verdict():
            raise Unjudged(verdict)
        first, until = next(self._turns), math.inf
        for attempt in itertools.count():
            server = self._server(self.urls[(first + attempt) % len(self.urls)], self._headers())
            try:
                reply = server.post_content(question.path, question.content, question.kind)
            except Refused as error:
                failure: Exception = error
                if error.status not in (*_OVERLOADED, 500, 413):
                    raise ConfigError(f"rewards.http: {error}") from error
                if error.status == 413 or (error.status == 500 and attempt + 1 >= _TRIES):
                    raise Unjudged(str(error)) from error
            except (Lost, TimedOut) as error:
                failure = error
            except RunError as error:  # a reply that is no JSON, or too long
                raise Unjudged(str(error)) from error
            else:
                self._outage.end()
                return reply
            if attempt == len(self.urls):
                log.warning("waiting for reward servers, for %g seconds at most: %s", self.outage_seconds, failure)
            until = min(until, time.monotonic() + self.outage_seconds)  # also where others are answered meanwhile
            if not self._outage.begin(failure) or time.monotonic() >= until:
                raise Unjudged(str(self._outage.verdict() or failure)) from failure
            if (attempt + 1) % len(self.urls) == 0:
                time.sleep(min(0.5 * 2 ** (attempt // len(self.urls)), 8))
        raise AssertionError("the loop has no end")


def _num_units(granularity: str, batch: RewardBatch) -> int:
    """Returns how many samples, groups or episodes a batch holds."""
    names = {"group": batch.group, "episode": batch.episode}.get(granularity)
    return len(batch) if names is None else len(names.unique())
