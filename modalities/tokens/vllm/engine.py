"""vLLM as the inference engine: servers that sample answers over HTTP and receive the weights."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self
from uuid import uuid4
from weakref import finalize

import torch
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, RunError
from mmrl.system.json_server import JsonServer, Lost

from ...encoding.inputs import pad_rows
from ..completions import Completions
from ..sampling import Support
from .ahead import Ahead, request_name
from .launch import Launched, Served, arguments_of, environment_of
from .protocol import Answer, Question, SamplingParams
from .replica import Replica
from .weights import fingerprint, temporary_folder

if TYPE_CHECKING:
    from .tiny_server import Twin

log = logging.getLogger(__name__)
_LOOK = 1.0  # seconds between two looks at whether a lost server is back
Requests = tuple[Sequence[Question], Sequence[int], Sequence[int]]  # questions, the one of each answer, seeds
_SLACK = 8  # answers that are waited for at a server beyond the shortest queue before a prompt goes to another one


@dataclass(frozen=True, kw_only=True)
class Vllm(Checked):
    """The settings of `vllm serve`, one or several, of the run's model; `docs/engines.md` says how to start it."""

    name: Literal["vllm"]  # the inference engine
    # Where `vllm serve` listens. Several servers share the answers, and all get the weights.
    url: str | list[str] = "http://127.0.0.1:8000"
    # The run starts the server at `url`, which must be this machine's, with the options that it needs, and ends it.
    start: bool = False
    command: list[str] = field(default_factory=lambda: ["vllm", "serve"])  # what `start` runs; the model follows
    options: list[str] = field(default_factory=list)  # further options of the server that `start` runs
    start_seconds: Annotated[float, Field(gt=0)] = 900.0  # how long that server may take to load
    # The level of sleep of vLLM between rollouts, which frees its GPU for the update: 1 moves its weights to the memory
    # of the host, 2 drops them (only where all weights are trained); 0: it stays awake.
    sleep: Literal[0, 1, 2] = 0
    # Where weights are written for the server, which must see the folder under the same path; null: a temporary folder
    # of this machine.
    folder: str | None = None
    concurrency: Annotated[int, Field(ge=1)] = 256  # answers that are requested at once
    # The answers of a group come in one request (vLLM's `n`), which holds the images once, and not in one request for
    # each. vLLM then counts their seeds up from that of the first, so other answers are sampled than without.
    one_request: bool = False
    timeout_seconds: Annotated[float, Field(gt=0)] = 1800.0  # how long one request may take in all
    retries: Annotated[int, Field(ge=0)] = 6  # how often a refused connection is tried again; 40 wait for five minutes
    # How long a server that ends in the middle of a run is waited for, or started again where `start` is set; its
    # answers are then sampled anew. 0: the run ends.
    outage_seconds: Annotated[float, Field(ge=0)] = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, for a wrong URL, and for `start` on another machine."""
        super().__post_init__()
        hosts = [server.host for server in self.servers()]
        if not hosts or len(set(self.urls)) < len(hosts):
            raise ValueError(f"url must name one server or several different ones, got {self.url!r}")
        if self.start and (len(hosts) > 1 or hosts[0] not in ("127.0.0.1", "localhost")):
            raise ValueError(f"start needs one url of this machine, such as http://127.0.0.1:8000, got {self.url!r}")
        if self.start and not self.command:
            raise ValueError("command must name the program that start runs, got an empty list")

    @property
    def urls(self) -> list[str]:
        return [self.url] if isinstance(self.url, str) else self.url

    def servers(self) -> list[JsonServer]:
        """Returns a client of each server."""
        return [JsonServer(url, self.timeout_seconds, self.retries) for url in self.urls]

    def tiny(self, model: Path, load: Callable[[str], "Twin"]) -> Self:
        """Returns the same settings for as many servers on this machine, which serve the twin in the folder `model`.

        The servers run as long as the folder is there. `load` makes the policy of a folder.
        """
        from .tiny_server import TinyVllm, serve

        urls = [serve(TinyVllm(model, load).answer, model.is_dir) for _ in self.urls]
        return replace(self, url=urls if len(urls) > 1 else urls[0], folder=None, start=False)


@dataclass
class VllmEngine:
    """The client of vLLM servers: sends them the policy's weights, and samples answers with them."""

    settings: Vllm
    num_tokens: int  # of the model's vocabulary
    served: Served | None = None  # what a server that this run starts must serve
    ahead: Ahead = field(default_factory=Ahead, init=False, repr=False)
    has_guests: bool = field(default=False, init=False, repr=False)  # processes that sample by the weights it sent
    _replicas: list[Replica] = field(init=False, repr=False)
    _queues: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # answers under way, by replica
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _weights: tuple[int, ...] | None = field(default=None, init=False, repr=False)  # as the servers have them
    _num_syncs: int = field(default=0, init=False, repr=False)
    _name: str = field(default_factory=lambda: f"mmrl-{uuid4().hex[:12]}", init=False, repr=False)  # of this process
    _folders: list[Path] = field(default_factory=list, init=False, repr=False)  # of weights, the newest last
    _launched: list[Launched] = field(default_factory=list, init=False, repr=False)  # at most one
    _probe: int = field(default=0, init=False, repr=False)  # any token
    _is_asleep: bool = field(default=False, init=False, repr=False)
    _is_guest: bool = field(default=False, init=False, repr=False)  # another process of the run sends the weights

    def __post_init__(self) -> None:
        self._replicas = [Replica(server, self.num_tokens) for server in self.settings.servers()]
        self._queues = dict.fromkeys(range(len(self._replicas)), 0)
        hurry = min(self.settings.timeout_seconds, 10.0)
        goodbyes = [replace(replica.server, timeout_seconds=hurry, retries=0) for replica in self._replicas]
        finalize(self, _clear, self._replicas, goodbyes, self._folders, self._launched)

    def generate(
        self, questions: Sequence[Question], prompt_of: Sequence[int], seeds: Sequence[int], sampling: SamplingParams
    ) -> Completions:
        """Samples n answers: answer i to question `prompt_of[i]`, by `seeds[i]`.

        Answers that were sampled ahead are taken as they are. Answers of a server that ends are sampled anew once it is
        back, by the same seeds. Raises ConfigError where no server answers or a server reads prompts as other tokens,
        and RunError where a server fails.
        """
        self.ahead.settle()
        answers: dict[int, Answer] = {}
        for number, (row, seed) in enumerate(zip(prompt_of, seeds, strict=True)) if self.ahead.answers else ():
            answer = self.ahead.take(request_name(questions[row], sampling, seed))
            answers |= {} if answer is None else {number: answer}
        self._sample(questions, prompt_of, seeds, sampling, answers)
        return _completions([answers[number] for number in range(len(seeds))], sampling)

    def begin(self, requests: Callable[[], Requests], sampling: SamplingParams) -> None:
        """Begins to sample the answers that the next `generate` will be asked for; returns at once.

        They are sampled by the weights that the servers have now: `follow` waits for them before it sends others.

        Args:
            requests: makes the questions, the question of each answer, and the seeds; called in another thread.
        """

        def sample() -> dict[int, Answer]:
            questions, prompt_of, seeds = requests()
            answers: dict[int, Answer] = {}
            self._sample(questions, prompt_of, seeds, sampling, answers)
            pairs = enumerate(zip(prompt_of, seeds, strict=True))
            return {request_name(questions[row], sampling, seed): answers[n] for n, (row, seed) in pairs}

        self.ahead.begin(sample)

    def _sample(
        self,
        questions: Sequence[Question],
        prompt_of: Sequence[int],
        seeds: Sequence[int],
        sampling: SamplingParams,
        answers: dict[int, Answer],
    ) -> None:
        """Adds the answers, by their numbers, that are not there yet."""
        while left := [number for number in range(len(seeds)) if number not in answers]:
            lost: dict[int, Lost] = {}
            runs = runs_of(left, prompt_of, seeds)
            attempt = partial(self._try, questions, sampling, lost)
            with ExitStack() as stack:
                for replica in self._replicas:
                    stack.enter_context(replica.opened())
                pool = stack.enter_context(_pool(max(1, self.settings.concurrency // max(map(len, runs)))))
                firsts = [run[0] for run in runs]
                found = list(
                    pool.map(attempt, [prompt_of[n] for n in firsts], [seeds[n] for n in firsts], map(len, runs))
                )
            for run, some in zip(runs, found, strict=True):
                answers.update(zip(run, some, strict=bool(some)))
            for place, error in lost.items():
                if self.has_guests:  # all processes wait together, see `recover`
                    raise error
                self._wait_for(self._replicas[place], error)

    def _try(
        self,
        questions: Sequence[Question],
        sampling: SamplingParams,
        lost: dict[int, Lost],
        row: int,
        seed: int,
        num_answers: int,
    ) -> list[Answer]:
        """Samples answers to question `row` in one request; none where its server is lost, which is noted."""
        with self._shortest(hash(questions[row].read), lost, num_answers) as place:
            if place is None:
                return []
            try:
                return self._replicas[place].ask(questions[row], sampling, seed, num_answers)
            except Lost as error:
                lost.setdefault(place, error)  # the first one says how it began
                return []

    def follow(self, tensors: Mapping[str, Tensor], export: Callable[[Path], None], probe: int) -> None:
        """Sends the servers the weights now in place, where they have other weights, and wakes them.

        Args:
            tensors: the trained ones. export: writes a folder with them, a model's or an adapter's.
            probe: any token, to find out of which distribution a server's log-probs are.
        """

        def write(folder: Path) -> None:
            folder.mkdir(parents=True)
            export(folder)

        self.get_ready(probe)
        now = fingerprint(tensors.values())
        if not self.has(now):
            self.send(now, write)

    def get_ready(self, probe: int) -> None:
        """Starts, wakes and meets the servers, as far as that is needed, once what is sampled ahead is there."""
        self._probe = probe
        self.ahead.settle()  # by the weights that are there
        if self.settings.start and not self._launched and not self._is_guest:
            self._launch()
        self._wake()
        for replica in self._replicas:
            if not replica.base:
                replica.meet(probe)
        self._folder()

    def has(self, weights: tuple[int, ...]) -> bool:
        """Returns whether the servers have the weights of this fingerprint; of sharded ones, of this process's part."""
        return weights == self._weights

    def send(self, weights: tuple[int, ...], write: Callable[[Path], None]) -> None:
        """Sends the weights now in place, whose fingerprint is given.

        `write` makes a folder of them, and is called before anything else can fail. Raises RunError where it cannot.
        """
        self._weights = None  # unknown if this fails
        name = f"{self._name}-{self._num_syncs}"  # of the next sync
        self._num_syncs += 1  # of a failed sync as well: a server may hold a part of it under its name
        self._folders.append(self._folder() / name)
        try:
            write(self._folders[-1])
        except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
            raise RunError(
                f"engine.folder: cannot write the weights for the server into {self._folder()}: {error}; make room "
                "there, or set another folder"
            ) from error
        with ThreadPoolExecutor(len(self._replicas)) as pool:
            list(pool.map(lambda replica: self._give(replica, name), self._replicas))
        while len(self._folders) > 1:
            shutil.rmtree(self._folders.pop(0), ignore_errors=True)
        self._weights = weights
        log.info("the vLLM servers at %s have the weights of sync %d", self.settings.urls, self._num_syncs)

    def _give(self, replica: Replica, name: str) -> None:
        try:
            replica.take(name, self._folders[-1])
        except Lost as error:
            self._wait_for(replica, error)

    def share(self, tensors: Mapping[str, Tensor], name: str, probe: int) -> None:
        """Samples by weights that another process of the run has sent, under the name that it gave them."""
        self._probe, self._is_guest = probe, True
        for replica in self._replicas:
            if not replica.base:
                replica.meet(probe)
            replica.share(name, is_adapter=self.served is not None and self.served.lora_rank is not None)
        self._weights = fingerprint(tensors.values())

    @property
    def weights(self) -> str:
        """Returns the name under which the servers have the weights that were sent last."""
        return self._replicas[0].weights

    def close(self) -> None:
        """Breaks off what is sampled ahead, if anything is."""
        self.ahead.abandon()
        for replica in self._replicas:
            replica.break_off()

    def rest(self) -> None:
        """Lets the servers sleep until they are needed again, where that is set."""
        if self.settings.sleep and not self._is_asleep:
            for replica in self._replicas:
                replica.sleep(self.settings.sleep)
            self._is_asleep = True
            if self.settings.sleep == 2:
                self._weights = None  # they are gone there

    def _wake(self) -> None:
        if self._is_asleep:
            for replica in self._replicas:
                replica.wake()
            self._is_asleep = False

    def _launch(self) -> None:
        """Starts the server and waits until it answers."""
        assert self.served is not None, "given where a server is started"
        can_sleep = self.settings.sleep > 0
        options = arguments_of(self.served, self.settings.urls[0], can_sleep=can_sleep)
        command = [*self.settings.command, self.served.model, *options, *self.settings.options]
        log_file = temporary_folder() / "vllm.log"
        log.info("starting %s; what it prints goes into %s", " ".join(command), log_file)
        self._launched[:] = [Launched(command, environment_of(self.served, can_sleep=can_sleep), log_file)]
        self._launched[0].wait_until(self._replicas[0].is_up, self.settings.start_seconds)

    def _wait_for(self, replica: Replica, error: Lost) -> None:
        """Waits until a lost server is back, starts it again where the run started it, and sends it the weights.

        Raises the error where it does not come back in time.
        """
        if not self.settings.outage_seconds or self._is_guest:  # a guest has no weights to send
            raise error
        self._await(replica, error)
        self._give_again([replica])

    def recover(self, error: Lost) -> None:
        """Waits until all servers are there, and gives all of them the weights under one new name.

        For several processes, none of which samples meanwhile. A lost server that the run started is started again.
        Raises the error that a process had where one does not come back in time.
        """
        if not self.settings.outage_seconds:
            raise error
        for replica in self._replicas:
            self._await(replica, error)
            with suppress(ConfigError, RunError):  # a server that was started anew has no adapter
                replica.clear()
        self._give_again(self._replicas)

    def _await(self, replica: Replica, error: Lost) -> None:
        """Waits until a server answers, and starts it again where the run started it; raises the error where it does
        not come back in time."""
        log.warning("%s; waiting up to %g seconds for it", str(error), self.settings.outage_seconds)
        until = time.monotonic() + self.settings.outage_seconds
        if self._launched and not self._launched[0].is_alive:
            self._launch()
        while not replica.is_up():
            if time.monotonic() > until:
                raise error
            time.sleep(_LOOK)

    def _give_again(self, replicas: Sequence[Replica]) -> None:
        """Gives servers the newest weights under a new name: they may hold a part of them under the old one."""
        name = f"{self._name}-{self._num_syncs}"
        self._num_syncs += 1
        for replica in replicas:
            replica.meet(self._probe)
            replica.take(name, self._folders[-1])
            log.warning("the vLLM server at %s is back, and has the weights", replica.server.url)

    @contextmanager
    def _shortest(self, prompt: int, lost: Mapping[int, Lost], num_answers: int = 1) -> Iterator[int | None]:
        """Counts answers at the replica with the shortest queue, and returns its place; None: all are lost.

        `prompt`: any number of the prompt, the same in all processes. Its answers stay at one replica, which then reads
        the prompt once, while queues are about equal.
        """
        with self._lock:
            queues = {place: count for place, count in self._queues.items() if place not in lost}
            place = None
            if queues:
                home, least = [*queues][prompt % len(queues)], min(queues.values())
                place = home if queues[home] <= least + _SLACK else min(queues, key=lambda one: queues[one])
                self._queues[place] += num_answers
        try:
            yield place
        finally:
            with self._lock:
                if place is not None:
                    self._queues[place] -= num_answers

    def _folder(self) -> Path:
        if self.settings.folder is not None:
            return Path(self.settings.folder).expanduser().absolute()
        return temporary_folder()


def runs_of(numbers: Sequence[int], prompt_of: Sequence[int], seeds: Sequence[int]) -> list[list[int]]:
    """Returns the numbers of answers, cut into those of one request each: to one prompt, by seeds that count up."""
    runs: list[list[int]] = []
    for number in numbers:
        last = runs[-1][-1] if runs else None
        if last is not None and prompt_of[last] == prompt_of[number] and seeds[last] + 1 == seeds[number]:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


@contextmanager
def _pool(size: int) -> Iterator[ThreadPoolExecutor]:
    """Gives threads; what they have not begun is left out where the block ends early."""
    pool = ThreadPoolExecutor(size)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _clear(
    replicas: Sequence[Replica],
    goodbyes: Sequence[JsonServer],
    folders: Sequence[Path],
    launched: Sequence[Launched],
) -> None:
    """Removes the adapters and folders that a run leaves, as far as the servers still answer, and ends its own."""
    for server in launched:
        server.end()
    for replica, goodbye in zip(replicas, goodbyes, strict=True):
        replica.server = goodbye
        with suppress(ConfigError, RunError):
            if not launched:
                replica.clear()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _completions(answers: Sequence[Answer], sampling: SamplingParams) -> Completions:
    """Joins the servers' answers, with the tokens that were left by truncation where they name them."""
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
