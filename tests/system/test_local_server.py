"""The servers of dry runs."""

import httpx2
import pytest
from werkzeug import Request, Response

from mmrl.system.local_server import in_json, serve


def answer(request: Request) -> Response:
    if request.path == "/broken":
        raise ConnectionResetError("the server ends in the middle of its answer")
    return in_json({"path": request.path})


def test_a_connection_that_breaks_is_ended_and_the_next_request_is_answered() -> None:
    url = serve(answer)
    with httpx2.Client(base_url=url, timeout=10) as client:
        assert client.get("/one").json() == {"path": "/one"}
        with pytest.raises(httpx2.RemoteProtocolError):  # and not that of a client that waited in vain
            client.get("/broken")
        assert client.get("/two").json() == {"path": "/two"}
