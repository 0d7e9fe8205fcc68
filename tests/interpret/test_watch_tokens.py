"""Which words a record carries: those of its own pass, one for each position, or none."""

import csv
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.heads.patterns import head_patterns
from regard.record.highlight import choose_focus
from sweeps import sweep

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", *"the animal was tired a cold house it".split()]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<unk>")


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=9)).eval()


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


def texts(record: regard.Record) -> list[str]:
    return [token.text for token in record.stream("text")]


@pytest.mark.parametrize(
    ("first", "second"), [("the animal was tired", "a cold house"), ("a cold house", "the animal was tired")]
)
def test_each_pass_has_its_own_words(model: Any, tokenizer: Any, first: str, second: str) -> None:
    with regard.watch(model, tokenizer=tokenizer) as seen, torch.no_grad():
        for text in (first, second):
            model(input_ids=tokenizer(text, return_tensors="pt")["input_ids"], use_cache=False)
    assert [texts(record) for record in seen.records] == [first.split(), second.split()]


def test_the_steps_of_a_generation_are_one_text(model: Any, tokenizer: Any) -> None:
    ids = tokenizer("the animal was", return_tensors="pt")["input_ids"]
    with regard.watch(model, tokenizer=tokenizer) as seen:
        out = model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert texts(seen.record) == tokenizer.convert_ids_to_tokens(out[0, :-1].tolist())


def whole(x: Tensor) -> Tensor:
    return x


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:The PyTorch API of nested tensors")
def test_ids_whose_numbers_cannot_be_read_leave_a_model_running(tokenizer: Any) -> None:
    """Those of several texts under torch.func.vmap, and jagged ones."""
    model = Shortens(whole, whole, whole)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with pytest.raises(regard.ObservationError, match=r"torch\.func"), regard.watch(model, tokenizer=tokenizer):
        assert torch.equal(torch.func.vmap(model)(ids[:, None]), torch.stack([model(one[None]) for one in ids]))
    jagged = torch.nested.nested_tensor([ids[0], ids[1, :2]], layout=torch.jagged)
    plain = model(jagged)
    with regard.watch(model, tokenizer=tokenizer) as seen:
        watched = model(jagged)
    assert torch.equal(watched.values(), plain.values())
    assert seen.record.tokens == {}


def test_ids_are_copies_of_a_loop_s_buffer(model: Any, tokenizer: Any) -> None:
    words = ["the", "animal", "was", "the", "animal", "was"]
    ids, buffer = tokenizer(" ".join(words), return_tensors="pt")["input_ids"], torch.zeros(1, 1, dtype=torch.long)
    found = []
    for way in ("buffer", "whole"):
        with torch.no_grad(), regard.watch(model, tokenizer=tokenizer, statistics=["duplicate_token"]) as seen:
            cache = transformers.DynamicCache()
            for one in ids[0] if way == "buffer" else ():
                model(input_ids=buffer.fill_(one), past_key_values=cache)
            if way == "whole":
                model(input_ids=ids)
        assert texts(seen.record) == words
        found.append(seen.statistic("duplicate_token", layer=0))
    assert abs(found[0] - found[1]).max() < 1e-5


class Shortens(nn.Module):
    """Attention to other positions than those of the ids, or by other ones: pooled, cropped or folded texts."""

    def __init__(self, of_input: Any, of_queries: Any, of_keys: Any) -> None:
        super().__init__()
        self.embed, self.q, self.k = nn.Embedding(99, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.of_input, self.of_queries, self.of_keys = of_input, of_queries, of_keys

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.of_input(self.embed(input_ids))
        rows, columns = self.of_queries(x), self.of_keys(x)
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.q(rows), self.k(columns), columns))
        return functional.scaled_dot_product_attention(q, k, v)


def pooled(x: Tensor) -> Tensor:
    return functional.avg_pool1d(x.mT, 2, 2).mT


def last(x: Tensor) -> Tensor:
    return x[:, -2:]


def test_ids_name_no_positions_that_are_fewer(tokenizer: Any) -> None:
    """They had the names of the first ids."""
    changes = {"pooled": pooled, "last": last, "rest": lambda x: x[:, 1:], "halves": lambda x: x.reshape(2, 3, 8)}
    for case in sweep(changes):
        with case as name:
            model = Shortens(changes[name], whole, whole)
            with regard.watch(model, tokenizer=tokenizer) as seen:
                model(tokenizer("the animal was tired it house", return_tensors="pt")["input_ids"])
            assert seen.record.tokens == {}


@pytest.mark.parametrize("side", ["rows", "columns"])
@pytest.mark.parametrize("change", [pooled, last, lambda x: x[:, :1]])
def test_pooled_or_chosen_positions_have_no_names(tokenizer: Any, side: str, change: Any, tmp_path: Path) -> None:
    """They had the names of the first tokens, and words were ranked by them."""
    model = Shortens(whole, *((change, whole) if side == "rows" else (whole, change)))
    names = ["the", "animal", "was", "tired", "it", "house"]
    with regard.watch(model, tokenizer=tokenizer) as seen:
        model(tokenizer(" ".join(names), return_tensors="pt")["input_ids"])
    layer = seen.record.layers[0]
    few = [str(number) for number in range(change(torch.zeros(1, 6, 1)).shape[1])]
    seen.export(tmp_path / "it.csv", "weights", layer=0, head=0)
    header, *rows = list(csv.reader((tmp_path / "it.csv").read_text("utf-8-sig").splitlines()))
    assert layer.kind == "self"
    assert [[row[0] for row in rows], header[1:]] == ([few, names] if side == "rows" else [names, few])
    said = rf"words of the rows and columns are not known: .* {layer.queries} queries on {layer.keys} keys"
    if side == "columns":  # pooled keys are a stream of their own
        said = rf"stream 'text 2' are not known, only those of 'text': .*, {layer.keys} of them"
    with pytest.raises(regard.ObservationError, match=said):
        seen.rank_heads("the", "was")
    for number in (None, 0):
        with pytest.raises(regard.ObservationError, match=said):
            choose_focus(seen.record, token="the", layer=number)
    assert "animal" in seen.record._repr_html_()
    assert len(head_patterns(seen.record, 0)) == 2


class TwoTexts(nn.Module):
    """A question and a document through one encoder, or the rows of a batch in another order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.embed, self.segments = order, nn.Embedding(9, 8), nn.Embedding(2, 8)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)])

    def encoded(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]).expand_as(ids)
        x = self.embed(ids) + self.embed(places) + self.segments(torch.zeros_like(ids))
        out: Tensor = self.layers[0](torch.cat([x.flip(0), x]) if self.order == "mirrored" else x)
        return out

    def forward(self, input_ids: Tensor, documents: Tensor) -> None:
        if self.order == "documents first":
            self.encoded(documents)
        if self.order == "one batch":
            self.encoded(torch.cat([documents, input_ids]))
        if self.order == "turned round":
            self.encoded(input_ids.flip(0))
        elif self.order == "documents alone":
            self.encoded(documents)
        elif self.order == "masked":
            self.encoded(input_ids.index_fill(1, torch.tensor(1), 7))
        elif self.order == "filled":
            self.encoded(input_ids.masked_fill(input_ids == 0, 7))
        else:
            self.encoded(input_ids.expand(4, -1) if self.order == "expanded" else input_ids)


ORDERS = ["documents first", "one batch", "turned round", "mirrored", "documents alone", "masked"]


def test_a_model_of_two_texts_has_no_words_of_the_other(tokenizer: Any) -> None:
    """The document's attention had the question's words."""
    for case in sweep(ORDERS):
        with case as order:
            model, texts = TwoTexts(order).eval(), ["the animal was tired", "it was the house"]
            ids = tokenizer(texts, return_tensors="pt")["input_ids"]
            with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
                model(ids, ids.roll(1, 1))
                if order == "documents first":
                    model(ids[:, :2], ids[:, 2:])
            assert all(record.tokens == {} for record in seen)
            for question in (ids, ids[:1] if order == "one batch" else ids):
                unknown = pytest.raises(
                    regard.ObservationError, match=r"which of the two|not seen to embed|did not show"
                )
                with unknown, torch.no_grad(), regard.watch(model, tokenizer=tokenizer, statistics=["duplicate_token"]):
                    model(question, ids.roll(1, 1)[: len(question)])


def test_two_encoders_of_two_vocabularies_of_one_size_have_no_words_of_each_other(tokenizer: Any) -> None:
    model = nn.ModuleList([TwoTexts(""), TwoTexts("")]).eval()
    model.forward = lambda input_ids, documents: [one(ids, ids) for one, ids in zip(model, (documents, input_ids))]  # type: ignore[method-assign]  # noqa: B905
    ids = tokenizer("the animal was tired a cold house", return_tensors="pt")["input_ids"]
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
        model(ids, ids.flip(1))
    assert seen.record.tokens == {}


class TwoTowers(nn.Module):
    """Words and something else through stacks of their own, which no name distinguishes."""

    def __init__(self, *, eager: bool) -> None:
        super().__init__()
        sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.BertConfig(**sizes, vocab_size=9, attn_implementation="eager" if eager else "sdpa")
        self.words, self.others, self.frames = (
            transformers.BertModel(config),
            transformers.BertModel(config),
            nn.ModuleList(),
        )
        self.frames.extend(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))

    def forward(self, input_ids: Tensor, other: Tensor) -> None:
        if other.ndim == 3 and len(self.frames):
            for layer in self.frames:
                other = layer(other)
        else:
            self.others(**{"inputs_embeds" if other.ndim == 3 else "input_ids": other})
        self.words(input_ids)


def test_a_second_tower_of_the_text_s_length_has_not_its_words(tokenizer: Any) -> None:
    for case in sweep(itertools.product(["boxes", "frames", "longer words"], [False, True])):
        with case as (kind, eager):
            model = TwoTowers(eager=eager).eval()
            if kind == "boxes":
                model.frames = nn.ModuleList()
            ids = tokenizer("the animal was tired a cold house", return_tensors="pt")["input_ids"]
            other = ids.tile(1, 2) if kind == "longer words" else torch.randn(1, 7, 8)
            with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
                model(ids, other)
            if kind == "longer words":
                texts_of = {name: len(one[0]) for name, one in seen.record.tokens.items()}
                assert texts_of in ({}, {"text 2": 7})
            else:
                assert seen.record.tokens == {}
                with pytest.raises(regard.ObservationError, match=r"which of the two a layer has: watch"):  # noqa: SIM117
                    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer, statistics=["duplicate_token"]):
                        model(ids, other)
            with (
                torch.no_grad(),
                regard.watch(model.words, tokenizer=tokenizer, statistics=["duplicate_token"]) as seen,
            ):
                model(ids, other)
            assert len(seen.record.stream("text")) == 7


def test_padded_positions_in_a_table_of_the_vocabulary_s_size_are_no_other_text(tokenizer: Any) -> None:
    model = transformers.GPT2Model(transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=9, n_positions=9))
    ids = torch.tensor([[0, 0, 1, 2, 4], [1, 2, 3, 5, 8]])
    with torch.no_grad(), regard.watch(model.eval(), tokenizer=tokenizer) as seen:
        model(ids, position_ids=torch.tensor([[1, 1, 0, 1, 2], [0, 1, 2, 3, 4]]))
    assert texts(seen.record) == tokenizer.convert_ids_to_tokens(ids[0].tolist())


def test_a_model_of_one_text_that_embeds_positions_too_has_its_words(tokenizer: Any) -> None:
    model = TwoTexts("").eval()
    ids = tokenizer("the animal was the animal", return_tensors="pt")["input_ids"]
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer, statistics=["duplicate_token"]) as seen:
        model(ids, ids)
    assert texts(seen.record) == ["the", "animal", "was", "the", "animal"]
    model.order = "filled"  # a special token, for an image, is not looked up
    filled = torch.cat([ids[:, :2], torch.zeros_like(ids[:, :3])], 1)
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen_too:
        model(filled, ids)
    assert texts(seen_too.record) == ["the", "animal", "<unk>", "<unk>", "<unk>"]
    model.order = "expanded"
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer, statistics=["duplicate_token"]) as copied:
        model(ids, ids)
    one, four = (each.statistic("duplicate_token", layer=0) for each in (seen, copied))
    assert one.any()
    assert abs(four - one).max() < 1e-6


def test_tokens_that_do_not_fit_are_refused() -> None:
    x = torch.randn(1, 6, 8)
    with pytest.raises(regard.InputError, match=r"6 \(text\) of them in a batch of 1, got 2"):  # noqa: SIM117, PT012
        with regard.watch(Plain(), tokens=["a", "b"]):
            Plain()(x)
            functional.scaled_dot_product_attention(x, x, x)
    with pytest.raises(regard.InputError, match="list of texts"), regard.watch(Plain(), tokens="abcdef"):  # type: ignore[arg-type]
        pass


def test_what_was_seen_is_drawn_and_written(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with regard.watch(model, tokenizer=tokenizer) as seen, torch.no_grad():
        model(input_ids=tokenizer("the animal was tired it house", return_tensors="pt")["input_ids"])
    seen.to_html(tmp_path / "page.html", token="it")
    assert "animal" in (tmp_path / "page.html").read_text(encoding="utf-8")
    axes = seen.plot(layer=1, head=2).axes
    assert any("animal" in label.get_text() for axis in axes for label in axis.get_yticklabels())


def test_a_call_from_another_thread_is_not_heard(model: Any, tokenizer: Any) -> None:
    one, other = (tokenizer(text, return_tensors="pt")["input_ids"] for text in ("the animal was", "it house tired"))
    with regard.watch(model, tokenizer=tokenizer) as seen, torch.no_grad(), ThreadPoolExecutor(1) as pool:
        model(input_ids=one, use_cache=False)
        pool.submit(model, input_ids=other.expand(2, -1), use_cache=False).result()
    assert texts(seen.record) == ["the", "animal", "was"]
    assert seen.calls_elsewhere == 1


def test_listening_leaves_a_fast_path_on(tokenizer: Any) -> None:
    """A hook on the layer would switch it off, and a mask of numbers hides on that path alone."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, mask = torch.randn(2, 5, 8), torch.full((5, 5), -0.5).triu(1)
    with torch.no_grad():
        plain = layer(x, src_mask=mask)
        with regard.watch(layer, tokenizer=tokenizer):
            assert torch.equal(layer(x, src_mask=mask), plain)


@pytest.mark.parametrize("layers", [None, ["model.decoder.layers.0.encoder_attn", "model.decoder.layers.0.self_attn"]])
def test_a_target_made_from_labels_has_not_the_words_of_the_source(tokenizer: Any, layers: Any) -> None:
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32}
    counts = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.BartConfig(vocab_size=9, **sizes, **counts, **special, forced_eos_token_id=None)
    model = transformers.BartForConditionalGeneration(config).eval()
    source, labels = (tokenizer(text, return_tensors="pt")["input_ids"] for text in ("the animal was", "a cold house"))
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer, layers=layers) as seen:
        model(input_ids=source, labels=labels)
    assert "target" not in seen.record.tokens
    assert [one.text for one in seen.record.stream("source")] == ["the", "animal", "was"]
    decoder = model.get_decoder()
    with torch.no_grad(), regard.watch(decoder, tokenizer=tokenizer) as seen:
        decoder(input_ids=source, encoder_hidden_states=torch.randn(1, 5, 32))
    assert [one.text for one in seen.record.stream("target")] == ["the", "animal", "was"]


def test_translations_one_after_the_other_have_their_own_words(tokenizer: Any) -> None:
    """`generate` calls the encoder alone, which begins the second record before the model is called again."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32}
    counts = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.BartConfig(vocab_size=9, **sizes, **counts, **special, forced_eos_token_id=None)
    model = transformers.BartForConditionalGeneration(config).eval()
    sources = [tokenizer(text, return_tensors="pt")["input_ids"] for text in ("the animal was", "a cold house was it")]
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
        outs = [model.generate(one, max_new_tokens=4, do_sample=True, eos_token_id=None) for one in sources]
    for record, out in zip(seen.records, outs, strict=True):
        found = [token.text for token in record.stream("target")]
        assert found == tokenizer.convert_ids_to_tokens(out[0, :-1].tolist())


class Changed(nn.Module):
    """A model that changes its ids first, or embeds them in its own way."""

    def __init__(self, change: str) -> None:
        super().__init__()
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        self.encoder, self.change = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=9)), change

    def forward(self, input_ids: Tensor) -> None:
        table, change = self.encoder.get_input_embeddings().weight, self.change
        if "turned" in change:
            input_ids = input_ids.flip(1)
        if "masked" in change:
            input_ids = torch.cat([input_ids[:, :-1], input_ids[:, -1:] % 8 + 1], 1)
        if "by index" in change:
            self.encoder(inputs_embeds=table[input_ids])
        elif "selected" in change:
            self.encoder(inputs_embeds=table.index_select(0, input_ids.flatten()).unflatten(0, input_ids.shape))
        elif "one-hot" in change:
            self.encoder(inputs_embeds=nn.functional.one_hot(input_ids, len(table)).float() @ table)
        elif "column by column" in change:
            columns = [self.encoder.get_input_embeddings()(one) for one in input_ids.unbind(1)]
            self.encoder(inputs_embeds=torch.stack(columns, 1))
        elif "sequence first" in change:
            self.encoder(inputs_embeds=self.encoder.get_input_embeddings()(input_ids.T).transpose(0, 1))
        else:
            self.encoder(input_ids)


@pytest.mark.parametrize("change", ["", "turned", "masked"])
def test_words_are_those_that_were_embedded(tokenizer: Any, change: str) -> None:
    """Short texts, and any text of a table that is not read by nn.Embedding, had the words from before the change."""
    ways = ["", "by index", "selected", "one-hot", "column by column", "sequence first"]
    texts_of_words = ["was house", "the animal was", "the animal the the", "the animal was tired a cold house"]
    for case in sweep(itertools.product(ways, texts_of_words)):
        with case as (way, text):
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            with torch.no_grad(), regard.watch(model := Changed(f"{change} {way}").eval(), tokenizer=tokenizer) as seen:
                model(ids)
            if change:
                assert seen.record.tokens == {}
                unknown = pytest.raises(regard.ObservationError, match="was not seen to embed its `input_ids`")
                with unknown, torch.no_grad(), regard.watch(model, tokenizer=tokenizer, statistics=["duplicate_token"]):
                    model(ids)
            else:
                assert texts(seen.record) == text.split()


@pytest.mark.parametrize("change", ["turned", "masked"])
def test_ids_that_are_numbers_of_positions_too_are_no_evidence(change: str, tokenizer: Any) -> None:
    """They are looked up, in the table of positions."""
    ids = torch.arange(5)[None]
    with torch.no_grad(), regard.watch(model := Changed(change).eval(), tokenizer=tokenizer) as seen:
        model(ids)
    assert seen.record.tokens == {}
    with torch.no_grad(), regard.watch(model := Changed("").eval(), tokenizer=tokenizer) as seen:
        model(ids)
    assert texts(seen.record) == tokenizer.convert_ids_to_tokens(ids[0].tolist())


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, *given: Tensor) -> list[Tensor]:
        q, k, v = (project(one) for project, one in zip(self.project, given, strict=True))
        return [torch.softmax(q @ k.mT, -1) @ v]


class Latents(nn.Module):
    """Learned latents attend to words and then to each other."""

    def __init__(self, latents: int, *, by_hand: bool) -> None:
        super().__init__()
        self.words, self.latents = nn.Embedding(9, 8), nn.Parameter(torch.randn(1, latents, 8))
        self.cross, self.inner = (
            ByHand() if by_hand else nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2)
        )

    def forward(self, input_ids: Tensor) -> None:
        words = self.words(input_ids)
        latents = self.cross(self.latents, words, words)[0]
        self.inner(latents, latents, latents)


def test_latents_as_many_as_words_have_not_their_names(tokenizer: Any) -> None:
    for case in sweep(itertools.product([3, 5], [False, True])):
        with case as (latents, by_hand):
            ids = tokenizer("the animal was tired a", return_tensors="pt")["input_ids"]
            with (
                torch.no_grad(),
                regard.watch(model := Latents(latents, by_hand=by_hand).eval(), tokenizer=tokenizer) as seen,
            ):
                model(ids)
            inner = next(one for one in seen.record.layers if one.name == "inner")
            assert inner.kind == "self"
            assert not {inner.query_tokens, inner.key_tokens} & seen.record.tokens.keys()


def small_translator(name: str) -> Any:
    sizes = {"d_model": 8, "vocab_size": 9, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if name == "T5":
        kind, config = transformers.T5ForConditionalGeneration, transformers.T5Config
        more = {"d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    else:
        kind, config = transformers.BartForConditionalGeneration, transformers.BartConfig
        more = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 16))}
        more |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return kind(config(**sizes, **more, decoder_start_token_id=1, forced_eos_token_id=None)).eval()


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_generate_names_the_source_too(tokenizer: Any, name: str, tmp_path: Any) -> None:
    """It calls the encoder outside of the model's own call, so only the target had words."""
    model, ids = small_translator(name), tokenizer("the animal was tired a", return_tensors="pt")["input_ids"]
    asked = {"max_new_tokens": 3, "eos_token_id": None, "pad_token_id": 0}
    with regard.watch(model, tokenizer=tokenizer) as seen:
        text = model.generate(ids, **asked, do_sample=False)
        model.generate(ids.flip(1), **asked, do_sample=False)
    words = [[one.text for one in record.tokens["source"][0]] for record in seen.records]
    assert words == ["the animal was tired a".split(), "a tired was animal the".split()]
    assert [one.text for one in seen.records[0].tokens["target"][0]] == tokenizer.convert_ids_to_tokens(
        text[0, :-1].tolist()
    )
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
        model(encoder_outputs=model.get_encoder()(input_ids=ids), decoder_input_ids=text)
    assert [one.text for one in seen.record.tokens["source"][0]] == words[0]
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
        model.get_encoder()(input_ids=ids)
    assert texts(seen.record) == words[0]
    with regard.watch(model, tokenizer=tokenizer) as seen:  # the encoder has one row, the decoder two
        model.generate(ids, **asked, do_sample=True, num_return_sequences=2)
    assert "source" not in seen.record.tokens
    seen.save(tmp_path / "it.atlas")
    assert regard.load_atlas(tmp_path / "it.atlas").record.tokens.keys() == {"target"}
