"""The server of pages: what it answers, what it refuses, and how it ends."""

import http.client
import signal
import socket
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import pytest

from mmrl.reporting import loopback
from mmrl.reporting.document import served_policy
from mmrl.reporting.loopback import Answer, Request, serving, stop_signals
from mmrl.system.errors import ConfigError

SEEN: list[Request] = []


def echo(request: Request) -> Answer:
    SEEN.append(request)
    return Answer(b"0123456789", "video/mp4")


@pytest.fixture
def port() -> Iterator[int]:
    SEEN.clear()
    with serving(echo, token="secret") as url:
        assert url.startswith("http://127.0.0.1:")
        yield urlsplit(url).port or 0


def ask(
    port: int, method: str = "GET", body: bytes | None = None, path: str = "/a?b=1", **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    sent = {"Host": f"127.0.0.1:{port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, sent)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, dict(response.getheaders()), content


def test_a_page_is_answered_with_headers_that_keep_others_out(port: int) -> None:
    status, headers, content = ask(port)
    assert (status, content, headers["Content-Type"]) == (200, b"0123456789", "video/mp4")
    assert [Request("GET", "/a", "b=1")] == SEEN
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin" and headers["Cache-Control"] == "no-store"
    assert "Python" not in headers["Server"]


def test_a_head_gets_the_headers_alone(port: int) -> None:
    status, headers, content = ask(port, "HEAD")
    assert (status, headers["Content-Length"], content) == (200, "10", b"")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:  # http.client reads no body of a HEAD
        plain.sendall(f"HEAD / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        assert b"".join(iter(lambda: plain.recv(4096), b"")).endswith(b"\r\n\r\n")
    assert ask(port, "HEAD", Host="evil.example")[0] == 403
    assert [Request("GET", "/a", "b=1"), Request("GET", "/", "")] == SEEN


def test_another_name_that_points_here_is_refused(port: int) -> None:
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", "", f"[::1]:{port}"):
        assert ask(port, Host=host)[0] == 403, host
    assert SEEN == []
    assert ask(port, Host=f"LOCALHOST:{port}")[0] == 200


def test_two_hosts_are_none(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n".encode())
        assert plain.recv(64).startswith(b"HTTP/1.1 403")


def test_a_post_needs_the_token_and_the_own_origin(port: int) -> None:
    own = {loopback.TOKEN.replace("-", "_"): "secret"}
    assert ask(port, "POST", b"{}")[0] == 403
    assert ask(port, "POST", b"{}", X_Mmrl_Token="secre")[0] == 403
    assert ask(port, "POST", b"{}", X_Mmrl_Token="\xe9")[0] == 403
    assert ask(port, "POST", b"{}", Origin="http://evil.example", **own)[0] == 403
    assert ask(port, "POST", b"{}", Origin="null", **own)[0] == 403
    assert ask(port, "POST", b"{}", Host="evil.example", **own)[0] == 403
    assert SEEN == []
    assert ask(port, "POST", b"{}", Origin=f"http://127.0.0.1:{port}", **own)[0] == 200
    assert ask(port, "POST", b"x", **own)[0] == 200
    assert [Request("POST", "/a", "b=1", b"{}"), Request("POST", "/a", "b=1", b"x")] == SEEN
    assert ask(port, "PUT", b"x", **own)[0] == 501


def test_without_a_token_every_post_is_refused() -> None:
    with serving(echo) as url:
        assert ask(urlsplit(url).port or 0, "POST", b"{}", X_Mmrl_Token="")[0] == 403


def test_a_large_body_is_not_read(port: int) -> None:
    for length in (str(loopback.LARGEST_BODY + 1), "-1", "x", "9" * 5000):
        assert ask(port, "POST", b"", X_Mmrl_Token="secret", Content_Length=length)[0] in (413, 431), length[:9]


def test_a_part_of_a_video_is_sent(port: int) -> None:
    for value, expected in (("bytes=2-4", b"234"), ("bytes=7-", b"789"), ("bytes=-3", b"789"), ("bytes=0-99", None)):
        status, headers, content = ask(port, Range=value)
        assert (status, content) == (206, expected or b"0123456789")
        assert headers["Content-Range"].endswith("/10") and int(headers["Content-Length"]) == len(content)
    for value in ("bytes=-", "bytes=5-4", "bytes=10-", "lines=1-2", "bytes=1-2,4-5"):
        assert ask(port, Range=value)[::2] == (200, b"0123456789"), value


def test_a_port_in_use_is_the_users_error(port: int) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}: "), serving(echo, port):
        pass


def test_nothing_listens_after_the_block_even_while_a_browser_holds_a_connection() -> None:
    with serving(echo) as url:
        port = urlsplit(url).port or 0
        held = socket.create_connection(("127.0.0.1", port))
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=2)
    held.close()


def test_a_policy_allows_its_own_style_and_script_alone() -> None:
    policy = served_policy("a{}", "")  # the second is the well-known digest of nothing
    assert "script-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=';" in policy
    assert "default-src 'none'; img-src 'self'; media-src 'self'; connect-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy and "unsafe" not in policy


def test_a_signal_sets_the_event_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as is_over:
        assert not is_over.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert is_over.is_set()
    assert signal.getsignal(signal.SIGTERM) == before
