"""The HTTP server of `mmrl serve`: rewards behind FastAPI, with limits, a token, deadlines, health and metrics.

The protocol stands in docs/serving.md. Requests are read by `mmrl.core.wire` and judged by `mmrl.scoring.batching`.
"""

import asyncio
import hmac
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import Field
from starlette.requests import ClientDisconnect

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Reward, RunError
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.wire import JSON, SAFETENSORS, Limits, ReadRequest, Score, WireError, read_request, write_response
from mmrl.scoring.batching import BatchQueue, Judged, QueueFull, Unit, make_units
from mmrl.system.spelling import near

_HELD = 4  # times the largest body: the bytes of all requests that are held at once
_STARTING = 30.0  # seconds that the server may take to listen
_GOODBYE = 30  # seconds that requests under way may take when it ends
_CALLS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # upper ends of classes, in seconds


@dataclass(frozen=True)
class ServerSettings(Checked):
    """The limits of a server. Raises ValueError for a number out of its range."""

    max_body: Annotated[int, Field(ge=1024)] = 2**29  # bytes of one request
    max_item: Annotated[int, Field(ge=1024)] = 2**29  # bytes of the media of one item, as sent and in float32
    max_items: Annotated[int, Field(ge=1)] = 4096  # of one request
    max_waiting: Annotated[int, Field(ge=1)] = 65536  # samples that wait for one reward
    max_connections: Annotated[int, Field(ge=1)] = 512  # at once; more are answered with 503
    request_seconds: Annotated[float, Field(gt=0)] = 600.0  # from the start of a request to its answer
    call_seconds: Annotated[float, Field(gt=0)] = 7200.0  # a longer call of a reward makes /health fail
    batch_size: Annotated[int, Field(ge=1)] | None = None  # samples of a call at most; None: the reward's own, or 64

    @property
    def limits(self) -> Limits:
        return Limits(self.max_items, self.max_item)


class _Metrics:
    """The metrics of a server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("mmrl_requests", "Requests by their status", ["reward", "status"], registry=registry)
        self.items = Counter("mmrl_items", "Samples, judged or not", ["reward", "outcome"], registry=registry)
        sizes = [2.0**power for power in range(13)]
        self.samples = Histogram("mmrl_call_samples", "Samples of a call", ["reward"], buckets=sizes, registry=registry)
        self.seconds = Histogram("mmrl_call_seconds", "Time of a call", ["reward"], buckets=_CALLS, registry=registry)
        self.waiting = Gauge("mmrl_waiting_samples", "Samples that wait", ["reward"], registry=registry)


@dataclass
class RewardServer:
    """Rewards by the names under which they are served."""

    rewards: Mapping[str, Reward]
    settings: ServerSettings = field(default_factory=ServerSettings)
    token: str | None = field(default=None, repr=False)
    _queues: dict[str, BatchQueue] = field(default_factory=dict, init=False, repr=False)
    _metrics: _Metrics = field(default_factory=_Metrics, init=False, repr=False)
    _held: int = field(default=0, init=False)  # bytes of the requests that are held now

    @contextmanager
    def running(self) -> Iterator[FastAPI]:
        """Runs a queue for each reward; gives the application."""
        with ExitStack() as stack:
            for name, reward in self.rewards.items():
                queue = stack.enter_context(self._queue(name, reward))
                self._metrics.waiting.labels(name).set_function(queue.num_waiting)
                self._queues[name] = queue
            yield self._app()

    def _queue(self, name: str, reward: Reward) -> BatchQueue:
        def on_call(count: int, seconds: float) -> None:
            self._metrics.samples.labels(name).observe(count)
            self._metrics.seconds.labels(name).observe(seconds)

        return BatchQueue(
            name,
            reward,
            batch_size=self.settings.batch_size,
            max_waiting=self.settings.max_waiting,
            call_seconds=self.settings.call_seconds,
            on_call=on_call,
        )

    def _app(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)  # whose pages load scripts from elsewhere

        @app.get("/health")
        async def health(response: Response) -> dict[str, str]:
            trouble = [words for queue in self._queues.values() if (words := queue.trouble)]
            response.status_code = 503 if trouble else 200
            return {"status": trouble[0] if trouble else "ok"}

        @app.get("/metrics")
        async def metrics(request: Request) -> Response:
            self._check_token(request)
            return Response(generate_latest(self._metrics.registry), media_type="text/plain")

        @app.get("/v1/rewards")
        async def rewards(request: Request) -> dict[str, Any]:
            self._check_token(request)
            return self._description()

        @app.post("/v1/rewards/{name}/scores")
        async def scores(name: str, request: Request) -> Response:
            response = await self._answer(name, request)
            self._metrics.requests.labels(name if name in self.rewards else "", str(response.status_code)).inc()
            return response

        return app

    def _check_token(self, request: Request) -> None:
        given = request.headers.get("Authorization", "")
        if self.token is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise HTTPException(
                401,
                f"this server needs its token, as `Authorization: Bearer ...`; got {'another' if given else 'none'}",
                {"WWW-Authenticate": "Bearer"},
            )

    def _description(self) -> dict[str, Any]:
        """Returns the rewards and the limits, as /v1/rewards shows them."""
        described = [
            {
                "name": name,
                "source": reward.source,
                "range": [end if math.isfinite(end) else None for end in reward.range],
                "granularity": reward.granularity,
                "needs": sorted(reward.needs),
                "batch_size": self._queues[name].batch_size,
                "is_relative": RewardDeclaration.of(reward).is_relative,
            }
            for name, reward in self.rewards.items()
        ]
        limits = {"body": self.settings.max_body, "item": self.settings.max_item, "items": self.settings.max_items}
        return {"rewards": described, "limits": limits}

    async def _answer(self, name: str, request: Request) -> Response:
        """Returns the response to a request for scores, whatever comes of it."""
        seconds, began = self.settings.request_seconds, asyncio.get_running_loop().time()
        try:
            self._check_token(request)
            if name not in self.rewards:
                known = ", ".join(self.rewards)
                raise HTTPException(
                    404, f"no reward {name!r} is served here{near(name, self.rewards)}; served are {known}"
                )
            async with asyncio.timeout_at(began + seconds) as deadline, self._read(request) as read:
                seconds = min(seconds, read.timeout_seconds or seconds)
                deadline.reschedule(began + seconds)
                return Response(await self._scores(name, read), media_type=JSON)
        except TimeoutError:
            refusal = HTTPException(504, f"reward {name!r} has not answered within {seconds:g} seconds")
        except ClientDisconnect:  # in the middle of its request: nobody reads this
            refusal = HTTPException(400, "the client left before its request was whole")
        except HTTPException as error:
            refusal = error
        return await http_exception_handler(request, refusal)

    @asynccontextmanager
    async def _read(self, request: Request) -> AsyncIterator[ReadRequest]:
        """Gives a request as it was read, whose bytes count as held as long as the block lasts."""
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind not in (JSON, SAFETENSORS):
            raise HTTPException(415, f"Content-Type must be {JSON} or {SAFETENSORS}, got {kind or 'none'!r}")
        parts: list[bytes] = []
        size, most = 0, _HELD * self.settings.max_body
        try:
            async for part in self._received(request):
                parts.append(part)
                size += len(part)
                self._held += len(part)
                if self._held > most:
                    raise HTTPException(503, "the requests of all clients are too large together", {"Retry-After": "1"})
            read = await asyncio.to_thread(_read_parts, parts, kind, self.settings.limits)
            yield read
        except WireError as error:
            raise HTTPException(422, str(error)) from error
        finally:
            self._held -= size

    async def _received(self, request: Request) -> AsyncIterator[bytes]:
        """Gives the parts of a body. Raises HTTPException where it is too large."""
        size, most = 0, self.settings.max_body
        async for part in request.stream():
            size += len(part)
            if size > _HELD * most:
                break
            if size <= most:  # a larger body is read nevertheless, since a client listens when it has spoken
                yield part
        if size > most:
            raise HTTPException(413, f"a body may have {most:,} bytes, got more; send fewer items at once")

    async def _scores(self, name: str, read: ReadRequest) -> bytes:
        """Returns the body of the response, once all samples are judged."""
        units, unjudged = make_units(self.rewards[name], read)
        judged = {row: Judged(None, reason) for row, reason in unjudged.items()}
        try:
            self._queues[name].submit([unit for _, unit in units])
        except QueueFull as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
        for (rows, _), results in zip(units, await _results([unit for _, unit in units]), strict=True):
            judged |= dict(zip(rows, results, strict=True))
        scores = [Score(read.ids[row], judged[row].score, judged[row].reason) for row in range(len(read.ids))]
        num_judged = sum(one.score is not None for one in scores)
        self._metrics.items.labels(name, "judged").inc(num_judged)
        self._metrics.items.labels(name, "not_judged").inc(len(scores) - num_judged)
        return write_response(name, scores)


def _read_parts(parts: list[bytes], kind: str, limits: Limits) -> ReadRequest:
    """Returns the request of the parts of a body, and empties the list."""
    content = b"".join(parts)
    parts.clear()
    return read_request(content, kind, limits)


async def _results(units: list[Unit]) -> list[list[Judged]]:
    """Waits for the results of units; where nobody waits any more, those that have not begun are cancelled."""
    return await asyncio.gather(*(asyncio.wrap_future(unit.result) for unit in units))


@contextmanager
def serving(server: RewardServer, host: str, port: int) -> Iterator[str]:
    """Serves for as long as the block lasts; gives the address. Requests under way are answered before it ends.

    Raises ConfigError for a host or a port that cannot be used; port 0: a free one.
    """
    try:
        listener = socket.create_server((host, port), family=socket.getaddrinfo(host, port)[0][0])
    except OSError as error:
        raise ConfigError(f"cannot listen at --host {host} --port {port}: {error}") from error
    with server.running() as app:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            limit_concurrency=server.settings.max_connections,
            timeout_graceful_shutdown=_GOODBYE,
        )
        web = uvicorn.Server(config)
        thread = threading.Thread(target=web.run, args=([listener],), daemon=True, name="reward_server")
        thread.start()
        try:
            until = time.monotonic() + _STARTING
            while not web.started:
                if not thread.is_alive() or time.monotonic() > until:
                    raise RunError(f"the server did not start within {_STARTING:g} seconds; see its log")
                time.sleep(0.01)
            name = listener.getsockname()
            yield f"http://[{name[0]}]:{name[1]}" if ":" in name[0] else f"http://{name[0]}:{name[1]}"
        finally:
            web.should_exit = True
            thread.join(_GOODBYE + 5)
            listener.close()  # which the server closed, if it ever started
