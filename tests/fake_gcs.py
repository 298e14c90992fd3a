"""Google Cloud Storage in one process: the part of its JSON API that the clients here use.

gcsfs, google-cloud-storage and tensorstore are pointed at it by `FakeGcs.environment`. It
keeps objects in memory, whole or not at all, lists them in order and counts what is asked.
"""

import base64
import hashlib
import itertools
import json
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import google_crc32c

_TIME = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Stored:
    """An object's bytes and the number of its version."""

    data: bytes
    generation: int


class Request(NamedTuple):
    """What a client asked: `num_bytes` of content went to it."""

    method: str
    path: str
    num_bytes: int


class FakeGcs:
    """The server, while it is entered.

    Args:
      buckets: Those there are.
      forbidden: Buckets that answer 403.
    """

    def __init__(self, *buckets: str, forbidden: tuple[str, ...] = ()):
        self.buckets: dict[str, dict[str, Stored]] = {name: {} for name in buckets}
        self.forbidden = forbidden
        self.requests: list[Request] = []
        # Answered with this status, as long as it is set, whatever is asked.
        self.broken: int | None = None
        self.lock = threading.RLock()
        self.generations = itertools.count(1)
        self.uploads: dict[str, tuple[str, str, dict, bytearray]] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.fake = self
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead a process's clients here."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            # Anything: the server asks for none, tensorstore would look for one for long.
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        }

    def __enter__(self) -> "FakeGcs":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, bucket: str, name: str, data: bytes) -> Stored:
        """Stores an object."""
        with self.lock:
            stored = Stored(bytes(data), next(self.generations))
            self.buckets[bucket][name] = stored
            return stored

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """The names of the objects that begin so."""
        with self.lock:
            return sorted(name for name in self.buckets[bucket] if name.startswith(prefix))

    def data(self, bucket: str, name: str) -> bytes:
        """An object's content."""
        with self.lock:
            return self.buckets[bucket][name].data


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_) -> None:
        """A client that was killed, or gave up a request, is no mistake of the server's."""


class _Failure(Exception):
    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Small answers must not wait for more to be sent.
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def _answer(self) -> None:
        self._body = self._read_body()
        url = urlsplit(self.path)
        self._query = {key: values[0] for key, values in parse_qs(url.query).items()}
        fake = self.server.fake
        try:
            if fake.broken:
                raise _Failure(fake.broken, "out of order")
            with fake.lock:
                status, headers, content = self._route(url.path)
        except _Failure as failure:
            error = {"error": {"code": failure.status, "message": str(failure)}}
            status, headers, content = failure.status, {}, json.dumps(error).encode()
        # Before the answer: who has it may look at once.
        num_bytes = len(content) if status < 400 else 0
        fake.requests.append(Request(self.command, unquote(url.path), num_bytes))
        self._send(status, headers, content)

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        headers = {"Content-Type": "application/json"} | headers
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _route(self, path: str) -> tuple[int, dict[str, str], bytes]:
        match = re.fullmatch(
            r"(?:/(upload|download|resumable))?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+)(/.*)?)?)?(/?)",
            path,
        )
        if not match:
            raise _Failure(400, f"the fake knows no {self.command} {path}")
        kind, bucket, name, action, _ = match.groups()
        name = unquote(name) if name else None
        fake = self.server.fake
        if bucket in fake.forbidden:
            raise _Failure(403, f"no access to {bucket}")
        if bucket not in fake.buckets:
            raise _Failure(404, "The specified bucket does not exist.")
        if kind == "resumable":
            return self._continue_upload(name)
        if kind == "upload":
            return self._upload(bucket)
        if name is None and not path.rstrip("/").endswith("/o"):
            return _json({"kind": "storage#bucket", "name": bucket, "id": bucket})
        if name is None:
            return self._list(bucket)
        if action:
            return self._copy(bucket, name, action)
        stored = fake.buckets[bucket].get(name)
        if self.command == "DELETE":
            self._check_generation(stored)
            if stored is None:
                raise _Failure(404, f"No such object: {bucket}/{name}")
            del fake.buckets[bucket][name]
            return 204, {}, b""
        if stored is None:
            raise _Failure(404, f"No such object: {bucket}/{name}")
        if kind == "download" or self._query.get("alt") == "media":
            return self._media(stored)
        return _json(_metadata(bucket, name, stored))

    def _media(self, stored: Stored) -> tuple[int, dict[str, str], bytes]:
        if self._query.get("ifGenerationNotMatch") == str(stored.generation):
            return 304, {}, b""
        total = len(stored.data)
        headers = {
            "Content-Type": "application/octet-stream",
            "x-goog-generation": str(stored.generation),
            "x-goog-stored-content-length": str(total),
        }
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            return 200, headers, stored.data
        first, last = asked.groups()
        if not first:
            start, stop = max(0, total - int(last)), total
        else:
            start, stop = int(first), min(total, int(last) + 1 if last else total)
        if start >= total:
            raise _Failure(416, "range not satisfiable")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
        return 206, headers, stored.data[start:stop]

    def _list(self, bucket: str) -> tuple[int, dict[str, str], bytes]:
        prefix, delimiter = self._query.get("prefix", ""), self._query.get("delimiter", "")
        after = self._query.get("pageToken", "")
        first, stop = self._query.get("startOffset", ""), self._query.get("endOffset")
        size = int(self._query.get("maxResults", 1000))
        items, prefixes, token, last = [], [], None, ""
        for name in self.server.fake.names(bucket, prefix):
            if name < first or (stop is not None and name >= stop):
                continue
            rest = name[len(prefix) :]
            folder = delimiter and delimiter in rest
            entry = prefix + rest.partition(delimiter)[0] + delimiter if folder else name
            if entry <= after or entry in prefixes:
                continue
            if len(items) + len(prefixes) == size:
                token = last
                break
            last = entry
            if folder:
                prefixes.append(entry)
            else:
                items.append(_metadata(bucket, name, self.server.fake.buckets[bucket][name]))
        page = {"kind": "storage#objects", "items": items, "prefixes": prefixes}
        return _json(page | ({"nextPageToken": token} if token else {}))

    def _upload(self, bucket: str) -> tuple[int, dict[str, str], bytes]:
        kind, name = self._query["uploadType"], self._query.get("name")
        if kind == "media":
            return self._store(bucket, name, self._body)
        if kind == "multipart":
            boundary = re.search(r'boundary="?([^";]+)"?', self.headers["Content-Type"])[1]
            _, first, second, _ = self._body.split(f"--{boundary}".encode())
            metadata = json.loads(_part(first))
            return self._store(bucket, name or metadata["name"], _part(second))
        name = name or json.loads(self._body)["name"]
        fake = self.server.fake
        number = str(next(fake.generations))
        fake.uploads[number] = (bucket, name, dict(self._query), bytearray())
        where = f"{fake.url}/resumable/storage/v1/b/{bucket}/o/{number}"
        return 200, {"Location": where}, b""

    def _continue_upload(self, number: str) -> tuple[int, dict[str, str], bytes]:
        fake = self.server.fake
        if self.command == "DELETE":
            fake.uploads.pop(number, None)
            return 499, {}, b""
        bucket, name, self._query, content = fake.uploads[number]
        content += self._body
        total = self.headers.get("Content-Range", "/").rpartition("/")[2]
        if total in ("", "*") or len(content) < int(total):
            return 308, {"Range": f"bytes=0-{len(content) - 1}"} if content else {}, b""
        del fake.uploads[number]
        return self._store(bucket, name, bytes(content))

    def _store(self, bucket: str, name: str, data: bytes) -> tuple[int, dict[str, str], bytes]:
        fake = self.server.fake
        self._check_generation(fake.buckets[bucket].get(name))
        return _json(_metadata(bucket, name, fake.put(bucket, name, data)))

    def _copy(self, bucket: str, name: str, action: str) -> tuple[int, dict[str, str], bytes]:
        fake = self.server.fake
        stored = fake.buckets[bucket].get(name)
        if stored is None:
            raise _Failure(404, f"No such object: {bucket}/{name}")
        if move := re.fullmatch(r"/moveTo/o/([^/]+)", action):
            target = unquote(move[1])
            del fake.buckets[bucket][name]
            return _json(_metadata(bucket, target, fake.put(bucket, target, stored.data)))
        if copy := re.fullmatch(r"/rewriteTo/b/([^/]+)/o/([^/]+)", action):
            there, target = copy[1], unquote(copy[2])
            made = _metadata(there, target, fake.put(there, target, stored.data))
            return _json({"kind": "storage#rewriteResponse", "done": True, "resource": made})
        raise _Failure(400, f"the fake knows no {action}")

    def _check_generation(self, stored: Stored | None) -> None:
        wanted = self._query.get("ifGenerationMatch")
        if wanted is not None and int(wanted) != (stored.generation if stored else 0):
            raise _Failure(412, "the generation is another")


def _metadata(bucket: str, name: str, stored: Stored) -> dict[str, str]:
    checksum = google_crc32c.value(stored.data).to_bytes(4, "big")
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "id": f"{bucket}/{quote(name)}/{stored.generation}",
        "size": str(len(stored.data)),
        "generation": str(stored.generation),
        "metageneration": "1",
        "crc32c": base64.b64encode(checksum).decode(),
        "md5Hash": base64.b64encode(hashlib.md5(stored.data).digest()).decode(),
        "timeCreated": _TIME,
        "updated": _TIME,
    }


def _part(content: bytes) -> bytes:
    """The body of a part of a multipart message, whichever way its lines end."""
    for end in (b"\r\n", b"\n"):
        if (head := content.find(end + end)) >= 0:
            return content[head + 2 * len(end) :].removesuffix(end)
    raise _Failure(400, "a part has no end of its headers")


def _json(values: dict) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(values).encode()
