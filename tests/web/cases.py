"""Records made by hand from dense matrices, which are what the tests compare with, and a server that shows them."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from regard.record.records import Layer, Record
from regard.record.tokens import Token

pytest.importorskip("starlette", reason="starlette is not installed (the extra `web`)")
web = pytest.importorskip("regard.web")

SINK = 37


def attention(heads: int, queries: int, keys: int, *, causal: bool, sinks: tuple[int, ...] = (), seed: int = 0):
    """Random weights (heads, queries, keys) in float64; each sink has a score 7 above the others."""
    scores = np.random.default_rng(seed).normal(size=(heads, queries, keys))
    scores[:, :, list(sinks)] += 7
    if causal:
        scores[:, np.triu(np.ones((queries, keys), dtype=bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def blocks(weights: np.ndarray, step: int, pool: str) -> np.ndarray:
    """Cells of `step` × `step` weights, one at a time."""
    if step == 1:
        return weights
    rows, columns = (range(0, side, step) for side in weights.shape)
    reduce = np.mean if pool == "mean" else np.max
    return np.array([[reduce(weights[r : r + step, c : c + step]) for c in columns] for r in rows])


def layer_of(weights: np.ndarray, *, step: int = 1, name: str = "layer", kind: str = "self", streams=("text", "text")):
    """A layer as a watch would keep it: maps with cells of `step`, the 8 strongest keys, entropy, received."""
    order = np.argsort(-weights, -1)[..., :8]
    top = np.take_along_axis(weights, order, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(np.where(weights > 0, weights * np.log(weights), 0), -1)
    maps = [
        np.stack([blocks(head, step, pool) for head in weights])[None].astype(np.float32) for pool in ("mean", "max")
    ]
    return Layer(
        name=name, kind=kind, query_tokens=streams[0], key_tokens=streams[1], query_bin=step, key_bin=step,
        mean=maps[0], max=maps[1], top_keys=np.where(top > 0, order, -1)[None].astype(np.int32),
        top_weights=top[None].astype(np.float32), entropy=entropy[None].astype(np.float32),
        received=weights.sum(1)[None].astype(np.float32),
    )  # fmt: skip


def words(count: int, stem: str = "w") -> tuple[Token, ...]:
    return tuple(Token(f"{stem}{at}", space=at > 0) for at in range(count))


HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\u202eevil",
    "</title>",
    "{model}",
    '"><b>',
    "貓",
)


@dataclass
class Case:
    """A record with the dense weights of its layers."""

    record: Record
    weights: list[np.ndarray] = field(default_factory=list)


class Client:
    """Asks a running server as any program can."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def send(self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None):
        """Status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path: str, **asked) -> bytes:
        status, _, body = self.send("GET", path + "?" + "&".join(f"{name}={value}" for name, value in asked.items()))
        assert status == 200, body
        return body

    def json(self, path: str, **asked):
        return json.loads(self.get(path, **asked))

    def floats(self, path: str, **asked) -> np.ndarray:
        return np.frombuffer(self.get(path, **asked), dtype="<f4")

    def read(self, text: str):
        body = json.dumps({"text": text}).encode()
        status, _, said = self.send("POST", "/read", body=body, headers={"Content-Type": "application/json"})
        return status, json.loads(said)


@contextmanager
def serving(*records: Record, reader=None) -> Iterator[Client]:
    """A server of its own, on a free port of the loopback address."""
    listener = web.bind(0)
    server = web.make_server(web.make_app(web.Shelf(records, "case.atlas"), reader))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield Client(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()
