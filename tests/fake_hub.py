"""An in-memory fake of the Hugging Face Hub: the part of its API that uploads a model."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

TOKEN, READ_ONLY = "hf_writer", "hf_reader"


class Repository(NamedTuple):
    """A repository: whether it is private (None if not told), and its files by path."""

    private: bool | None
    files: dict[str, bytes]


@contextlib.contextmanager
def serve() -> Iterator[tuple[str, dict[str, Repository]]]:
    """Runs the server; yields its address for HF_ENDPOINT, and its repositories by name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.repositories = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.repositories
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        """Prints nothing."""

    def do_GET(self) -> None:
        self._answer(404, {"error": "Not found"})

    def do_POST(self) -> None:
        content = self._body()
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in (TOKEN, READ_ONLY):
            self._answer(401, {"error": "Invalid username or password."})
        elif token == READ_ONLY:
            self._answer(403, {"error": "You don't have the rights to do this."})
        else:
            self._answer(*self._post(self.path.strip("/").split("/"), content))

    def _post(self, path: list[str], content: bytes) -> tuple[int, dict[str, Any]]:
        repositories: dict[str, Repository] = self.server.repositories
        url = f"http://{self.headers['Host']}"
        match path:
            case ["api", "repos", "create"]:
                asked = json.loads(content)
                name = f"{asked['organization']}/{asked['name']}"
                if name in repositories:
                    return 409, {"error": "You already created this", "url": f"{url}/{name}"}
                # Version 1 of huggingface_hub writes `private`, version 2 `visibility`.
                private = asked.get("private")
                if visibility := asked.get("visibility"):
                    private = visibility == "private"
                repositories[name] = Repository(private, {})
                return 200, {"url": f"{url}/{name}", "id": name}
            case ["api", "validate-yaml"]:
                return 200, {"errors": [], "warnings": []}
            case ["api", "models", owner, name, "preupload", "main"]:
                files = json.loads(content)["files"]
                modes = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                    for f in files
                ]
                return 200, {"files": modes}
            case ["api", "models", owner, name, "commit", "main"]:
                for line in map(json.loads, content.splitlines()):
                    if line["key"] == "file":
                        value = line["value"]
                        files = repositories[f"{owner}/{name}"].files
                        files[value["path"]] = base64.b64decode(value["content"])
                address = f"{url}/{owner}/{name}/commit/abc"
                return 200, {"commitUrl": address, "commitOid": "a" * 40, "success": True}
        return 404, {"error": f"the fake has no {self.path}"}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, values: dict[str, Any]) -> None:
        content = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
