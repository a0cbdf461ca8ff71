"""A web server on 127.0.0.1 that sends bytes from memory, and misbehaves on request."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Behaviour:
    """What the server does; `requests` are (path, Range header) in order of arrival."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)  # bytes sent of the next responses, in order
    knows_range: bool = True
    status: int | None = None
    content_type: str = "application/octet-stream"
    says_length: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


class _Handler(http.server.BaseHTTPRequestHandler):
    behaviour: Behaviour

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        does = self.behaviour
        wanted = self.headers.get("Range")
        does.requests.append((self.path, wanted))
        content = does.files.get(self.path.partition("?")[0].rpartition("/")[2])
        if content is None or does.status is not None:
            self.send_error(does.status or 404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if does.knows_range and start >= len(content) > 0:
            self.send_error(416)
            return
        start = start if does.knows_range else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if does.says_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Content-Type", does.content_type)
        self.end_headers()
        sent = does.cut_after.pop(0) if does.cut_after else len(content)
        self.wfile.write(content[start : start + sent])


@contextmanager
def local_server() -> Iterator[Behaviour]:
    """A running server; change what it does by its behaviour's fields."""
    behaviour = Behaviour()
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    behaviour.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield behaviour
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
