"""The server as another program meets it: what it tells, what it refuses, and what it bears."""

import itertools
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from regard.errors import InputError
from regard.record.records import Record
from sweeps import sweep
from web.cases import HOSTILE, Client, blocks, serving, web

HEAD = {"record": 0, "layer": 0, "head": 0, "batch_index": 0}
POST = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(small, pooled_record):
    with serving(small.record, pooled_record.record) as running:
        yield running


@pytest.fixture(scope="module")
def reading(small):
    echo = Echo(small.record)
    with serving(reader=echo) as running:
        yield running, echo


class Echo:
    """A reader that needs no model: every text becomes the same record."""

    name = "echo"

    def __init__(self, record: Record) -> None:
        self.record, self.texts = record, []

    def read(self, text: str):
        if text == "bad":
            raise InputError("`text` must be good, got 'bad'")
        self.texts.append(text)
        return self.record, "mind this" if text == "mind" else None


def refused(client: Client, method: str, path: str, status: int, **sent) -> str:
    code, headers, body = client.send(method, path, **sent)
    sentence = json.loads(body)["error"]
    assert code == status, sentence
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "\n" not in sentence
    return sentence


def test_tiles_are_the_dense_matrix(client, small) -> None:
    dense = small.weights[0][2]
    first = client.floats("/tile", **HEAD | {"head": 2}, step=1, row=0, column=0).reshape(256, 256)
    np.testing.assert_allclose(first, dense[:256, :256], rtol=1e-5, atol=1e-9)
    last = client.floats("/tile", **HEAD | {"head": 2}, step=1, row=1, column=1).reshape(44, 44)
    np.testing.assert_allclose(last, dense[256:, 256:], rtol=1e-5, atol=1e-9)
    coarse = client.floats("/tile", **HEAD | {"head": 2}, step=2, row=0, column=0, pool="max").reshape(150, 150)
    np.testing.assert_allclose(coarse, blocks(dense, 2, "max"), rtol=1e-5)


def test_a_weight_is_told_exactly(client, small) -> None:
    said = client.json("/weight", **HEAD, query=200, key=2)
    assert said["weight"] == pytest.approx(small.weights[0][0, 200, 2], rel=1e-5)
    assert said["below"] is None


def test_records_tokens_and_heads_are_told(client) -> None:
    told = client.json("/records")
    assert [one["model"] for one in told["records"]] == ["handmade", "pooled"]
    assert [one["finest"] for one in told["records"][1]["layers"]] == [4]
    assert told["records"][0]["layers"][1]["size"] == [1, 3, 300, 300]
    tokens = client.json("/tokens", record=0, layer=0, batch_index=0)
    assert tokens["queries"]["texts"][:2] == ["w0", "w1"]
    assert tokens["queries"]["marks"][:2] == "01"
    head = client.json("/head", **HEAD)
    assert [sink["key"] for sink in head["sinks"]] == [37]
    assert head["statistics"] == []
    thumbs = client.get("/thumbs", record=0, layer=0, batch_index=0)
    assert len(thumbs) == 2 + 3 * thumbs[0] * thumbs[1]


def test_lines_of_a_map_say_what_they_do_not_know(client) -> None:
    line = client.floats("/line", **HEAD | {"record": 1}, axis="row", at=900)
    assert np.isnan(line).sum() == 992


WRONG = [
    "/tile",
    "/tile?record=0",
    "/tile?record=9&layer=0&head=0&batch_index=0&step=1&row=0&column=0",
    "/tile?record=0&layer=7&head=0&batch_index=0&step=1&row=0&column=0",
    "/tile?record=0&layer=0&head=7&batch_index=0&step=1&row=0&column=0",
    "/tile?record=0&layer=0&head=0&batch_index=1&step=1&row=0&column=0",
    "/tile?record=0&layer=0&head=0&batch_index=0&step=3&row=0&column=0",
    "/tile?record=0&layer=0&head=0&batch_index=0&step=1&row=2&column=0",
    "/tile?record=0&layer=0&head=0&batch_index=0&step=999999999&row=999999999&column=0",
    "/tile?record=0&layer=0&head=0&batch_index=0&step=1&row=0&column=0&pool=sum",
    "/tile?record=0&layer=0&head=0&batch_index=0&step=1&row=-1&column=0",
    "/tile?record=0&layer=0&head=0&batch_index=0&step=" + "9" * 5000 + "&row=0&column=0",
    "/tile?record=1&layer=0&head=0&batch_index=0&step=1&row=0&column=0",
    "/weight?record=0&layer=0&head=0&batch_index=0&query=300&key=0",
    "/line?record=0&layer=0&head=0&batch_index=0&axis=row&at=300",
    "/tokens?record=0&layer=0&batch_index=1",
    "/tile?record=0&layer=0&head=0&batch_index=0&step=0&row=0&column=0",
    "/tile?record=1&layer=0&head=0&batch_index=0&step=0&row=0&column=0",
    "/thumbs?record=0&layer=0&batch_index=4",
    "/head?record=%D9%A0&layer=0&head=0&batch_index=0",
]


def test_a_wrong_question_gets_one_sentence(client) -> None:
    for case in sweep(WRONG, name=lambda path: path[:80]):
        with case as path:
            assert refused(client, "GET", path, 400)


NOWHERE = [
    "/../../etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "/%2e%2e/app.py",
    "/page/index.html",
    "//etc/passwd",
    "/style.css/../app.py",
    "/etc/passwd",
    "/case.atlas",
    "/..\\..\\x",
    "/index.html%00",
    "/records/",
]


def test_no_other_path_leads_anywhere(client) -> None:
    for case in sweep(NOWHERE):
        with case as path:
            assert refused(client, "GET", path, 404) == "there is nothing under this path"


def test_a_foreign_host_is_refused(client) -> None:
    for case in sweep(
        itertools.product(
            ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "[::1]", "0.0.0.0", ""],
            ["/", "/records", "/main.js", "/nowhere"],
        )
    ):
        with case as (host, path):
            assert "127.0.0.1 and localhost" in refused(client, "GET", path, 421, headers={"Host": host})


def test_both_names_of_this_machine_are_answered(client) -> None:
    for host in ("localhost", f"LOCALHOST:{client.port}", "127.0.0.1", f"127.0.0.1:{client.port}"):
        assert client.send("GET", "/", headers={"Host": host})[0] == 200


def test_the_server_listens_on_the_loopback_address_alone() -> None:
    with web.bind(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        with pytest.raises(InputError, match="in use by another program"):
            web.bind(listener.getsockname()[1])
    with pytest.raises(InputError, match="65535"):
        web.bind(65536)


def test_every_answer_forbids_to_load_from_elsewhere(client) -> None:
    for path in ("/", "/main.js", "/records", "/nowhere"):
        _, headers, _ = client.send("GET", path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert not [name for name in headers if name.lower().startswith("access-control")]


METHODS = [
    ("PUT", "/", 405),
    ("DELETE", "/records", 405),
    ("OPTIONS", "/read", 405),
    ("TRACE", "/", 405),
    ("GET", "/read", 405),
]


def test_other_methods_are_refused(client) -> None:
    for case in sweep(METHODS):
        with case as (method, path, status):
            assert refused(client, method, path, status)
            assert refused(client, "POST", "/records", 405, body=b"{}", headers=POST)


def test_hostile_tokens_are_told_as_text(hostile) -> None:
    with serving(hostile.record) as client:
        _, headers, body = client.send("GET", "/tokens?record=0&layer=0&batch_index=0")
        assert headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"
        texts = json.loads(body)["queries"]["texts"]
        assert texts[0] == HOSTILE[0]
        assert texts[2] == "\\u202eevil"


def test_cross_attention_has_two_texts(crossing) -> None:
    with serving(crossing.record) as client:
        tokens = client.json("/tokens", record=0, layer=0, batch_index=0)
        assert not tokens["same"]
        assert (len(tokens["queries"]["texts"]), len(tokens["keys"]["texts"])) == (5, 9)
        cells = client.floats("/tile", **HEAD, step=1, row=0, column=0).reshape(5, 9)
        np.testing.assert_allclose(cells, crossing.weights[0][0], rtol=1e-5)


def test_a_typed_text_becomes_a_record_of_its_own(small, crossing) -> None:
    echo = Echo(small.record)
    with serving(crossing.record, reader=echo) as client:
        assert client.json("/records")["model"] == "echo"
        assert client.read("hello  you") == (200, {"number": 1, "warning": None})
        assert client.read("mind") == (200, {"number": 2, "warning": "mind this"})
        titles = [one["title"] for one in client.json("/records")["records"]]
        assert titles == ["wort0 wort1 wort2 wort3 wort4", "hello you", "mind"]
        assert client.read("bad") == (400, {"error": "`text` must be good, got 'bad'"})
        assert echo.texts == ["hello  you", "mind"]


def test_the_oldest_typed_text_leaves_and_its_number_is_never_used_again(small, crossing) -> None:
    with serving(crossing.record, reader=Echo(small.record)) as client:
        numbers = [client.read(f"text {at}")[1]["number"] for at in range(12)]
        assert numbers == list(range(1, 13))
        assert [one["number"] for one in client.json("/records")["records"]] == [0, *range(5, 13)]
        assert "no longer" in refused(client, "GET", "/head?record=1&layer=0&head=0&batch_index=0", 400)


def test_of_long_typed_texts_the_latest_is_kept(small, pooled_record) -> None:
    shelf = web.Shelf()
    for record in (small.record, pooled_record.record, small.record, pooled_record.record):
        shelf.add(record, "typed")
    assert [book.number for book in shelf.books] == [0, 2, 3]


def test_a_text_is_refused_where_no_model_is_given(client) -> None:
    assert client.read("hello") == (
        400,
        {"error": "no model is here to read a text: start with `regard open --model minilm`"},
    )


NO_TEXTS = [
    ({"body": b'{"text": "a"}', "headers": {"Content-Type": "text/plain"}}, 415),
    ({"body": b'{"text": "a"}', "headers": {}}, 415),
    ({"body": b'{"text": "a"}', "headers": POST | {"Origin": "http://evil.example"}}, 403),
    ({"body": b'{"text": "a"}', "headers": POST | {"Origin": "null"}}, 403),
    ({"body": b'{"text": "a"}', "headers": POST | {"Sec-Fetch-Site": "cross-site"}}, 403),
    ({"body": b'{"text": "a"}', "headers": POST | {"Host": "evil.example"}}, 421),
    ({"body": b"x" * 100_001, "headers": POST}, 413),
    ({"body": b"{", "headers": POST}, 400),
    ({"body": b'{"text": 3}', "headers": POST}, 400),
    ({"body": b'{"text": "a\\ud800"}', "headers": POST}, 400),
    ({"body": b"[]", "headers": POST}, 400),
    ({"body": b"[" * 90_000, "headers": POST}, 400),
    ({"body": b"\xff", "headers": POST}, 400),
]


def test_what_is_no_text_of_the_page_is_refused(reading) -> None:
    for case in sweep(NO_TEXTS, name=lambda text: str(text)[:80]):
        with case as (sent, status):
            client, echo = reading
            refused(client, "POST", "/read", status, **sent)
            assert echo.texts == []


@pytest.mark.parametrize("length", [b"", b"Content-Length: 13\r\n"])
def test_a_text_without_end_is_refused(small, length: bytes) -> None:
    with serving(reader=Echo(small.record)) as client, socket.create_connection(("127.0.0.1", client.port), 5) as line:
        line.sendall(
            b"POST /read HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n" + length + b"\r\n"
        )
        assert line.recv(100).startswith(b"HTTP/1.1 411")


def test_tiles_are_answered_while_a_text_is_read(small) -> None:
    class Slow(Echo):
        def read(self, text: str):
            begun.set()
            assert go_on.wait(30)
            return super().read(text)

    begun, go_on = threading.Event(), threading.Event()
    with serving(small.record, reader=Slow(small.record)) as client, ThreadPoolExecutor() as pool:
        reading = pool.submit(client.read, "hello")
        assert begun.wait(30)
        assert len(client.floats("/tile", **HEAD, step=1, row=0, column=0)) == 256 * 256
        assert not reading.done()
        go_on.set()
        assert reading.result(30)[0] == 200


@pytest.mark.slow
def test_two_hundred_questions_at_once_are_all_answered_rightly(client, small) -> None:
    def ask(at: int) -> bool:
        layer, head, step = at % 2, at % 3, 2 ** (at % 4)
        cells = client.floats(
            "/tile", record=0, layer=layer, head=head, batch_index=0, step=step, row=0, column=0, pool="max"
        )
        side = min(256 * step, 300)
        expected = blocks(small.weights[layer][head][:side, :side], step, "max")
        return np.allclose(cells.reshape(expected.shape), expected, rtol=1e-5)

    with ThreadPoolExecutor(200) as pool:
        assert all(pool.map(ask, range(200)))


def test_what_fails_unforeseen_is_one_sentence_too(small, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def broken(*_, **__):
        raise FloatingPointError("bits")

    monkeypatch.setattr(web.HeadTiles, "tile", broken)
    with serving(small.record) as client:
        assert "FloatingPointError" in refused(
            client, "GET", "/tile?record=0&layer=0&head=0&batch_index=0&step=1&row=0&column=0", 500
        )


def test_weights_of_a_long_text_come_from_its_queries_and_keys() -> None:
    """900 tokens kept as a map and as q and k: what the server tells is what the model computes in float64."""
    import torch
    from torch import nn

    import regard

    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 2, batch_first=True).double().eval()
    x = 4 * torch.randn(1, 900, 16, dtype=torch.float64)
    with torch.no_grad():
        with regard.watch(attention, keep="qk") as seen:
            attention(x, x, x)
        dense = attention(x, x, x, average_attn_weights=False)[1][0].numpy()
    with serving(seen.record) as client:
        assert client.json("/records")["records"][0]["layers"][0]["finest"] == 1
        for query, key in ((0, 0), (899, 3), (450, 777)):
            said = client.json("/weight", **HEAD | {"head": 1}, query=query, key=key)
            assert said["weight"] == pytest.approx(dense[1, query, key], rel=1e-5)
        tile = client.floats("/tile", **HEAD | {"head": 1}, step=2, row=1, column=0, pool="max").reshape(194, 256)
        np.testing.assert_allclose(tile, blocks(dense[1], 2, "max")[256:, :256], rtol=1e-4)
        assert web.HeadTiles(seen.record.layers[0], 0).side(1) == 256
        line = client.floats("/line", **HEAD, axis="column", at=5)
        np.testing.assert_allclose(line, dense[0, :, 5], rtol=1e-4)
