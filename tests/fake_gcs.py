"""An in-memory fake of Google Cloud Storage: the part of its JSON API that our clients use.

orbax writes through tensorstore, which needs a real server with object generations and conditional
writes. gcp-storage-emulator, the only emulator on PyPI, has neither.
"""

import base64
import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

# Bucket -> name -> (content, generation).
_Buckets = dict[str, dict[str, tuple[bytes, int]]]


@contextlib.contextmanager
def serve() -> Iterator[tuple[dict[str, str], _Buckets]]:
    """Runs the server; yields the environment variables for its clients, and its buckets."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.buckets, server.uploads = {}, {}
    server.lock, server.generations = threading.RLock(), itertools.count(1)
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield (
            {
                "STORAGE_EMULATOR_HOST": server.url,
                "TENSORSTORE_GCS_HTTP_URL": server.url,
                # Any token will do. Without one, tensorstore would search for it for a long time.
                "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            },
            server.buckets,
        )
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_) -> None:
        """Clients that were killed are expected."""


class _Failure(Exception):
    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Sends small responses without delay.
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        self._body = self._read_body()
        url = urlsplit(self.path)
        self._query = {key: values[0] for key, values in parse_qs(url.query).items()}
        try:
            with self.server.lock:
                status, headers, content = self._route(url.path)
        except _Failure as failure:
            error = {"error": {"code": failure.status, "message": str(failure)}}
            status, headers, content = failure.status, {}, json.dumps(error).encode()
        self.send_response(status)
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
        } | headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _route(self, path: str) -> tuple[int, dict[str, str], bytes]:
        match = re.fullmatch(
            r"(?:/(upload|download|resumable))?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+)(/.*)?)?)?/?",
            path,
        )
        kind, bucket, name, action = match.groups()
        name = unquote(name) if name else None
        if bucket not in self.server.buckets:
            raise _Failure(404, "The specified bucket does not exist.")
        objects = self.server.buckets[bucket]
        if kind == "resumable":
            return self._continue_upload(name)
        if kind == "upload":
            return self._upload(bucket)
        if name is None:
            if path.rstrip("/").endswith("/o"):
                return self._list(bucket)
            return _json({"kind": "storage#bucket", "name": bucket, "id": bucket})
        content, generation = objects.get(name, (b"", 0))
        if self.command == "DELETE":
            self._check_generation(generation)
        if not generation:
            raise _Failure(404, f"No such object: {bucket}/{name}")
        if self.command == "DELETE":
            del objects[name]
            return 204, {}, b""
        if action:
            del objects[name]
            return self._store(bucket, unquote(action.removeprefix("/moveTo/o/")), content)
        if kind == "download" or self._query.get("alt") == "media":
            return self._media(content, generation)
        return _json(_metadata(bucket, name, content, generation))

    def _media(self, content: bytes, generation: int) -> tuple[int, dict[str, str], bytes]:
        if self._query.get("ifGenerationNotMatch") == str(generation):
            return 304, {}, b""
        total = len(content)
        headers = {"Content-Type": "application/octet-stream"}
        headers |= {"x-goog-generation": str(generation)}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            return 200, headers, content
        first, last = asked.groups()
        if first:
            start, stop = int(first), min(total, int(last) + 1 if last else total)
        else:
            start, stop = max(0, total - int(last)), total
        if start >= total:
            raise _Failure(416, "range not satisfiable")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
        return 206, headers, content[start:stop]

    def _list(self, bucket: str) -> tuple[int, dict[str, str], bytes]:
        prefix, delimiter = self._query.get("prefix", ""), self._query.get("delimiter", "")
        first, stop = self._query.get("startOffset", ""), self._query.get("endOffset", "\U0010ffff")
        items, prefixes = [], set()
        for name, stored in sorted(self.server.buckets[bucket].items()):
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix) or not first <= name < stop:
                continue
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(_metadata(bucket, name, *stored))
        return _json({"items": items, "prefixes": sorted(prefixes)})

    def _upload(self, bucket: str) -> tuple[int, dict[str, str], bytes]:
        kind, name = self._query["uploadType"], self._query.get("name")
        if kind == "media":
            return self._store(bucket, name, self._body)
        if kind == "multipart":
            boundary = re.search(r'boundary="?([^";]+)"?', self.headers["Content-Type"])[1]
            _, first, second, _ = self._body.split(f"--{boundary}".encode())
            return self._store(bucket, name or json.loads(_part(first))["name"], _part(second))
        number = str(next(self.server.generations))
        name = name or json.loads(self._body)["name"]
        self.server.uploads[number] = (bucket, name, self._query, bytearray())
        url = f"{self.server.url}/resumable/storage/v1/b/{bucket}/o/{number}"
        return 200, {"Location": url}, b""

    def _continue_upload(self, number: str) -> tuple[int, dict[str, str], bytes]:
        if self.command == "DELETE":
            self.server.uploads.pop(number, None)
            return 499, {}, b""
        bucket, name, self._query, content = self.server.uploads[number]
        content += self._body
        total = self.headers.get("Content-Range", "/").rpartition("/")[2]
        if total in ("", "*") or len(content) < int(total):
            return 308, {"Range": f"bytes=0-{len(content) - 1}"} if content else {}, b""
        del self.server.uploads[number]
        return self._store(bucket, name, bytes(content))

    def _store(self, bucket: str, name: str, content: bytes) -> tuple[int, dict[str, str], bytes]:
        objects = self.server.buckets[bucket]
        self._check_generation(objects.get(name, (b"", 0))[1])
        objects[name] = content, next(self.server.generations)
        return _json(_metadata(bucket, name, *objects[name]))

    def _check_generation(self, generation: int) -> None:
        if int(self._query.get("ifGenerationMatch", generation)) != generation:
            raise _Failure(412, "the generation is another")


def _metadata(bucket: str, name: str, content: bytes, generation: int) -> dict[str, str]:
    checksum = google_crc32c.value(content).to_bytes(4, "big")
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(len(content)),
        "generation": str(generation),
        "metageneration": "1",
        "crc32c": base64.b64encode(checksum).decode(),
        "timeCreated": "2026-01-01T00:00:00.000Z",
        "updated": "2026-01-01T00:00:00.000Z",
    }


def _part(content: bytes) -> bytes:
    """Returns the body of a part of a multipart message, with any kind of line ends."""
    end = b"\r\n" if b"\r\n\r\n" in content else b"\n"
    return content.partition(end + end)[2].removesuffix(end)


def _json(values: dict) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(values).encode()
