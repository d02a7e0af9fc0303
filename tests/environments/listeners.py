"""Sockets of this machine that record whatever reaches them."""

import selectors
import socket
import threading
from types import TracebackType
from typing import Self


class Listeners:
    """A TCP and a UDP socket on one port of 127.0.0.1; `heard` has what came, up to `MOST` times."""

    MOST = 100

    def __init__(self, port: int = 0) -> None:
        self.heard: list[str] = []
        self._tcp = socket.create_server(("127.0.0.1", port))
        self.port: int = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._tcp, selectors.EVENT_READ)
            ready.register(self._udp, selectors.EVENT_READ)
            while not self._is_over.is_set() and len(self.heard) < self.MOST:
                for key, _ in ready.select(timeout=0.1):
                    if key.fileobj is self._tcp:
                        self._tcp.accept()[0].close()
                        self.heard.append("TCP")
                    else:
                        self.heard.append(f"UDP {self._udp.recv(2048)!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._tcp.close()
        self._udp.close()
