"""Several streams in one model: which layers are whose, how they are numbered, whose tokens are whose."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models
from torch import Tensor, nn

import regard
from regard.errors import InputError, ObservationError
from regard.interpret.observation import Observation
from regard.observe.streams import Places
from sweeps import sweep

# The vision tower of Mllama calls its own layers so in transformers before 5.23.
pytestmark = pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning")
IMAGE = 55
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{number}" for number in range(4, IMAGE)), "<image>"]
TEXT = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
          "image_size": 16, "patch_size": 4}  # fmt: skip
PIXELS = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
Made = tuple[nn.Module, dict[str, Any]]


def ids(count: int, images: slice | None = None) -> Tensor:
    found = torch.arange(4, 4 + count)[None]
    if images is not None:
        found[:, images] = IMAGE
    return found


def made(kind: str, config: Any, **inputs: Any) -> Made:
    torch.manual_seed(0)
    return getattr(transformers, kind)(config).eval(), inputs


def clip() -> Made:
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=8)
    return made("CLIPModel", config, input_ids=ids(17), pixel_values=PIXELS)  # as many words as patches


def siglip() -> Made:
    config = transformers.SiglipConfig(text_config=TEXT | {"projection_size": 16}, vision_config=VISION)
    return made("SiglipModel", config, input_ids=ids(16), pixel_values=PIXELS)


def llava() -> Made:
    text = transformers.LlamaConfig(**TEXT, num_key_value_heads=1)
    vision = transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, vision_feature_layer=-1
    )
    return made("LlavaForConditionalGeneration", config, input_ids=ids(24, slice(2, 18)), pixel_values=PIXELS)


def paligemma() -> Made:
    text = transformers.GemmaConfig(**TEXT, num_key_value_heads=1, head_dim=8).to_dict()
    vision = transformers.SiglipVisionConfig(**VISION).to_dict()
    config = transformers.PaliGemmaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, projection_dim=16
    )
    tokens = ids(22, slice(0, 16))
    inputs = {"input_ids": tokens, "pixel_values": PIXELS, "token_type_ids": torch.zeros_like(tokens)}
    return made("PaliGemmaForConditionalGeneration", config, **inputs)


def idefics3() -> Made:
    text = transformers.LlamaConfig(**TEXT, num_key_value_heads=1).to_dict()
    config = transformers.Idefics3Config(vision_config=VISION, text_config=text, image_token_id=IMAGE, scale_factor=2)
    inputs = {"input_ids": ids(12, slice(2, 6)), "pixel_values": PIXELS[:, None]}
    return made("Idefics3ForConditionalGeneration", config, **inputs)


def mllama() -> Made:
    vision = VISION | {"num_global_layers": 1, "attention_heads": 2, "max_num_tiles": 1, "vision_output_dim": 32,
                       "supported_aspect_ratios": [[1, 1]], "intermediate_layers_indices": [0]}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e4}
    text = TEXT | {"num_hidden_layers": 3, "num_key_value_heads": 1, "cross_attention_layers": [1],
                   "rope_parameters": rope}  # fmt: skip
    config = transformers.MllamaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    one = torch.ones(1, 1, dtype=torch.long)
    inputs = {"input_ids": ids(9, slice(1, 2)), "pixel_values": PIXELS[:, None, None], "aspect_ratio_ids": one,
              "aspect_ratio_mask": one[..., None],
              "cross_attention_mask": one.expand(1, 9)[..., None, None]}  # fmt: skip
    return made("MllamaForConditionalGeneration", config, **inputs)


def blip() -> Made:
    text = TEXT | {"encoder_hidden_size": 16, "sep_token_id": 2}
    config = transformers.BlipConfig(vision_config=VISION, text_config=text, projection_dim=8, image_text_hidden_size=8)
    return made("BlipForConditionalGeneration", config, input_ids=ids(6), pixel_values=PIXELS)


def whisper() -> Made:
    sides = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = transformers.WhisperConfig(
        vocab_size=60, d_model=16, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=12, num_mel_bins=8,
        max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **sides,
    )  # fmt: skip
    features = torch.rand(1, 8, 24, generator=torch.Generator().manual_seed(0))
    return made("WhisperForConditionalGeneration", config, input_features=features, decoder_input_ids=ids(7))


def captioner() -> Made:
    decoder = transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**VISION), decoder
    )
    return made("VisionEncoderDecoderModel", config, decoder_input_ids=ids(6), pixel_values=PIXELS)


def t5() -> Made:
    config = transformers.T5Config(
        vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return made("T5ForConditionalGeneration", config, input_ids=ids(8), decoder_input_ids=ids(6))


def seen_of(model: nn.Module, inputs: dict[str, Any], **asked: Any) -> Observation:
    with torch.no_grad(), regard.watch(model, **asked) as seen:
        model(**inputs)
    return seen


def layers_of(seen: Observation) -> list[tuple[Any, int]]:
    pairs = [(layer.query_tokens, layer.key_tokens) for layer in seen.layers]
    return [
        (pair[0] if pair[0] == pair[1] else pair, layer.number) for pair, layer in zip(pairs, seen.layers, strict=True)
    ]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", sep_token="[SEP]",
        additional_special_tokens=["<image>"],
    )  # fmt: skip


TOWERS = [("image", 0), ("image", 1)]
LOOKING = [("text", 0), (("text", "image"), 0), ("text", 1), (("text", "image"), 1)]
LLAMA = [("image", 2), ("text", 0), (("text", "image 2"), 1), ("text", 2)]
TEXTS = [("text", 0), ("text", 1)]
POOLED = (("image queries", "image"), 0)  # SigLIP's learned query, which looks at all patches
CAPTIONS = [("source", 0), ("source", 1), ("target", 0), (("target", "source"), 0), ("target", 1),
            (("target", "source"), 1)]  # fmt: skip


STREAMS_OF_MODELS = [
    (clip, [*TOWERS, *TEXTS], {"image": 17, "text": 17}),
    (siglip, [*TOWERS, POOLED, *TEXTS], {"image": 16, "text": 16}),
    (llava, [*TOWERS, *TEXTS], {"image": 17, "text": 24}),
    (paligemma, [*TOWERS, POOLED, *TEXTS], {"image": 16, "text": 22}),
    (idefics3, [*TOWERS, *TEXTS], {"text": 12}),  # its patches are placed by what the picture covers
    # Its tower works on 24 padded positions, the last layer in a second stack; the text looks at the 17 real ones.
    (mllama, [*TOWERS, *LLAMA], {"image 2": 17, "text": 9}),
    (blip, [*TOWERS, *LOOKING], {"image": 17, "text": 6}),
    (whisper, CAPTIONS, {"target": 7}),
    (captioner, CAPTIONS, {"source": 17, "target": 6}),
    (t5, CAPTIONS, {"source": 8, "target": 6}),
]


def test_each_tower_and_text_is_a_stream_with_its_own_layers(tokenizer: Any) -> None:
    for case in sweep(STREAMS_OF_MODELS, lambda row: row[0].__name__):
        with case as (make, layers, known):
            model, inputs = make()
            seen = seen_of(model, inputs, tokenizer=tokenizer)
            assert layers_of(seen) == layers
            assert {stream: len(one) for stream, (one,) in seen.tokens.items()} == known
            text = "text" if "text" in known else "target"
            spelled = [WORDS[one] for one in inputs.get("decoder_input_ids", inputs.get("input_ids"))[0].tolist()]
            assert [token.text for token in seen.stream(text)] == spelled
            for layer, (stream, number) in zip(seen.layers, layers, strict=True):
                assert seen.layer(number, stream) is layer
            assert "<iframe" in seen._repr_html_()


def test_a_text_that_is_generated_beside_an_image_is_one_record(tokenizer: Any) -> None:
    model, inputs = mllama()  # one key head for two query heads, which a step of one query does not repeat
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
        model.generate(**inputs, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert len(seen) == 1
    assert [layer.queries for layer in seen.layers] == [24, 24, 24, 11, 11, 11]
    assert len(seen.stream("text")) == 11


def test_words_rank_the_heads_of_the_text_and_of_no_tower(tokenizer: Any) -> None:
    model, inputs = clip()
    seen = seen_of(model, inputs, tokenizer=tokenizer)
    ranked = seen.rank_heads("w9", "w6")
    assert {(one.stream, one.layer, one.head) for one in ranked} == {
        ("text", layer, head) for layer in (0, 1) for head in (0, 1)
    }
    with torch.no_grad():
        model.set_attn_implementation("eager")
        attentions = model(**inputs, output_attentions=True).text_model_output.attentions
    for one in ranked:
        expected = attentions[one.layer][0, one.head]
        assert one.weight == pytest.approx(float(expected[5, 2]), abs=1e-6)
        found = seen.weights(layer=one.layer, head=one.head, stream=one.stream)[0]
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    patches = seen.rank_heads("(3,1)", "cls")
    assert {one.stream for one in patches} == {"image"}
    with pytest.raises(InputError, match=r"`query_token` must be a word of the text \(\(0,0\) .*got 'w9'$"):
        seen.rank_heads("w9", "cls", stream="image")
    with pytest.raises(InputError, match=r"`query_token` must be a word of the text \(w.*got 'nowhere'"):
        seen.rank_heads("nowhere", "w6")


def test_layers_of_a_language_model_are_those_of_eager_attention(tokenizer: Any) -> None:
    model, inputs = llava()
    seen = seen_of(model, inputs, tokenizer=tokenizer)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    for layer, expected in enumerate(attentions):
        np.testing.assert_allclose(seen.weights(layer=layer, stream="text"), expected.numpy(), atol=1e-6)


def test_patches_are_named_by_row_and_column() -> None:
    seen = seen_of(*clip())
    names = [token.text for token in seen.stream("image")]
    assert names[0] == "cls"
    assert names[1 + 3 * 4 + 1] == "(3,1)"
    assert set(seen.tokens) == {"image"}  # no tokenizer: the words are not known


def test_a_number_without_its_stream_is_refused_with_the_streams_there_are() -> None:
    seen = seen_of(*blip())
    listed = '"image" (layers 0 to 1), "text" (layers 0 to 1), ("text", "image") (layers 0 to 1)'
    with pytest.raises(
        InputError,
        match=re.escape(f"`layer` 0 needs a `stream` too, as layers are numbered within it: stream= one of {listed}"),
    ):
        seen.weights(layer=0, head=0)
    with pytest.raises(InputError, match=re.escape(f"`stream` must be one of {listed}, got 'vision'")):
        seen.weights(layer=0, head=0, stream="vision")
    with pytest.raises(InputError, match=re.escape("`stream` must be one of 'image', 'text', got 'source'")):
        seen.stream("source")
    with pytest.raises(ObservationError, match="the tokens of the stream 'text' are not known, only those of 'image'"):
        seen.words()
    assert seen.weights(layer=-1, head=-1, stream=("text", "image")).shape == (1, 6, 17)
    assert seen.streams == {"image": 17, "text": 6}


def test_tokens_are_given_for_each_stream() -> None:
    model, inputs = t5()
    source, target = [f"s{n}" for n in range(8)], [f"t{n}" for n in range(6)]
    seen = seen_of(model, inputs, tokens={"source": source, "target": target})
    assert [token.text for token in seen.stream("source")] == source
    assert seen.rank_heads("t2", "s3")[0].stream == ("target", "source")
    assert set(seen_of(model, inputs, tokens={"target": target}).tokens) == {"target"}


def test_tokens_of_one_stream_join_those_that_the_tokenizer_knows(tokenizer: Any) -> None:
    seen = seen_of(*idefics3(), tokenizer=tokenizer, tokens={"image": [f"p{n}" for n in range(16)]})
    assert {stream: one[0].text for stream, (one, *_) in seen.tokens.items()} == {"image": "p0", "text": "w4"}


WRONG_TOKENS = [
    (["a"] * 6, r"a list for each stream where there are several, 8 \(source\), 6 \(target\), got one of 6: "),
    ({"text": ["a"] * 6}, r"must be of streams that there are, 8 \(source\), 6 \(target\) positions, got 'text'"),
    ({"target": ["a"] * 5}, r"8 \(source\), 6 \(target\) of them in a batch of 1, got 5 for 'target'"),
    ({"target": "abcdef"}, "a list of texts, one a position, got the text 'abcdef' for the stream 'target'"),
    ({"target": 3}, "must be a list of texts, one a position, or such lists by stream"),
    ([1, 2], "must be a list of texts, one a position, or such lists by stream"),
]


def test_tokens_of_no_stream_or_of_another_length_are_refused() -> None:
    for case in sweep(WRONG_TOKENS):
        with case as (tokens, says), pytest.raises(InputError, match=says):
            seen_of(*t5(), tokens=tokens)


def test_statistics_of_tokens_are_of_the_streams_whose_tokens_are_known(tokenizer: Any) -> None:
    model, inputs = clip()
    inputs["input_ids"][0, 9] = inputs["input_ids"][0, 4]
    seen = seen_of(model, inputs, tokenizer=tokenizer, statistics=["duplicate_token", "distance"])
    weights = seen.weights(layer=1, head=0, stream="text")[0]
    assert seen.statistic("duplicate_token", layer=1, head=0, stream="text")[0, 9] == pytest.approx(
        weights[9, 4], abs=1e-6
    )
    assert seen.statistic("distance", layer=1, head=0, stream="image").shape == (1, 17)
    with pytest.raises(ObservationError, match="'duplicate_token' was not kept of layer 1"):
        seen.statistic("duplicate_token", layer=1, stream="image")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one[:, None] for one in self.qkv(x).chunk(3, -1))
        return x + nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]


class Layers(nn.Module):
    """Calls its layers in this order."""

    def __init__(self, count: int, order: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"attention": Attention()}) for _ in range(count))
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        for number in self.order:
            x = self.layers[number]["attention"](x)
        return x


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.attention(self.attention(x)))


class Twins(nn.Module):
    """One tower that encodes two images."""

    def __init__(self) -> None:
        super().__init__()
        self.vision_tower = Layers(2, [0, 1])

    def forward(self, x: Tensor) -> Tensor:
        return self.vision_tower(x) @ self.vision_tower(x.flip(1)).mT


class Stages(nn.Module):
    def __init__(self, *blocks: int) -> None:
        super().__init__()
        lists = (nn.ModuleList(Attention() for _ in range(count)) for count in blocks)
        self.stages = nn.ModuleList(nn.ModuleDict({"blocks": one}) for one in lists)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            for block in stage["blocks"]:
                x = block(x)
        return x


class Wrapped(nn.Module):
    """Adds what a module makes of its input."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fn(x)


class InOrder(nn.Module):
    """Calls lists of modules in order, as CaiT of vit_pytorch calls its layers and torchvision the stages of Swin."""

    def __init__(self, *lists: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(*one) for one in lists)

    def forward(self, x: Tensor) -> Tensor:
        for one in self.layers:
            x = one(x)
        return x


def pairs(count: int) -> nn.Module:
    """Layers of attention and feed-forward in the same wrapper."""
    return InOrder(*([Wrapped(Attention()), Wrapped(nn.Linear(8, 8))] for _ in range(count)))


def triples() -> nn.Module:
    """Layers of two attentions and a feed-forward, the first of which lacks one."""
    first, second = ([Wrapped(Attention()) for _ in range(count)] for count in (1, 2))
    return InOrder([*first, Wrapped(nn.Linear(8, 8))], [*second, Wrapped(nn.Linear(8, 8))])


def stages() -> nn.Module:
    """Stages of blocks between a stem and merges."""
    stem, merge = [nn.Linear(8, 8), nn.LayerNorm(8), nn.Identity()], [nn.LayerNorm(8), nn.Linear(8, 8)]
    return InOrder(stem, [Attention(), Attention()], merge, [Attention()], merge, [Attention(), Attention()])


class Convolved(Wrapped):
    """A block of another kind."""


class Global(Attention):
    """Attention of another class."""


class Block(nn.Module):
    """Attention and a feed-forward."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.mlp = attention, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.attention(x))


def in_turns() -> nn.Module:
    """Stages of blocks whose attention is of two classes in turn (Twins of timm)."""
    return InOrder([Block(Attention()), Block(Global())], [Block(one()) for one in (Attention, Global) * 2])


def with_convolutions() -> nn.Module:
    """Stages whose earlier blocks have another layer in the place of attention (BoTNet of timm)."""
    plain = [Convolved(nn.Linear(8, 8)) for _ in range(3)]
    some = [Wrapped(Attention()) for _ in range(3)]
    return InOrder(plain[:2], [plain[2], some[0]], some[1:])


NUMBERS = [
    (lambda: Layers(4, [0, 2, 3]), [("text", 0), ("text", 2), ("text", 3)]),  # one is skipped
    (lambda: Layers(3, [0, 1, 1, 2]), [("text", 0), ("text", 1), ("text", 3), ("text", 2)]),  # called again
    (lambda: Layers(2, [0, 1, 0, 1]), [("text", number) for number in range(4)]),
    (Shared, [("text", number) for number in range(3)]),
    (Twins, [("image", 0), ("image", 1), ("image 2", 0), ("image 2", 1)]),
    (lambda: Stages(2, 2), [("text", number) for number in range(4)]),
    (lambda: Stages(2, 1, 3), [("text", number) for number in range(6)]),  # the second was a second number 1
    (lambda: Stages(1, 1, 1), [("text", number) for number in range(3)]),
    (lambda: pairs(3), [("text", number) for number in range(3)]),
    (stages, [("text", number) for number in range(5)]),
    (with_convolutions, [("text", number) for number in (3, 4, 5)]),
    (in_turns, [("text", number) for number in range(6)]),
]


def test_layers_have_the_numbers_that_the_model_gives_them() -> None:
    for case in sweep(NUMBERS, lambda row: str(row[1])):
        with case as (model, layers):
            torch.manual_seed(0)
            made = model()
            with torch.no_grad(), regard.watch(made) as seen:
                made(torch.randn(1, 5, 8))
            assert layers_of(seen) == layers
            for layer, (stream, number) in zip(seen.layers, layers, strict=True):
                assert seen.layer(number, stream) is layer


def test_blocks_of_a_branch_are_counted_in_their_own_lists() -> None:
    """CrossViT of timm: stages of two branches, of one block and of three."""
    blocks = [nn.Sequential(*(Block(Attention()) for _ in range(count))) for count in (1, 3, 1, 3)]
    places = Places(InOrder(blocks[:2], blocks[2:]))
    paths = [f"layers.{stage}.1.{block}.attention" for stage in range(2) for block in range(3)]
    assert [places.of(path, {}).number for path in paths] == [*range(6)]


def test_attention_twice_in_a_layer_has_its_number_twice() -> None:
    with torch.no_grad(), regard.watch(model := triples()) as seen:
        model(torch.randn(1, 5, 8))
    assert layers_of(seen) == [("text", 0), ("text", 1), ("text", 1)]


def test_a_skipped_layer_is_named() -> None:
    model = Layers(4, [0, 2, 3])
    with torch.no_grad(), regard.watch(model, keep="qk", layers=[2]) as seen:
        model(torch.randn(1, 5, 8))
    assert [(layer.number, layer.qk is not None) for layer in seen.layers] == [(2, True)]
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(1, 5, 8))
    with pytest.raises(InputError, match=r"`layer` must be one of 0, 2, 3 \(seen layers: 3\), got 1"):
        seen.weights(layer=1)


def test_shared_layers_are_counted_as_the_configuration_does() -> None:
    config = transformers.AlbertConfig(**TEXT | {"num_hidden_layers": 4}, embedding_size=8, num_hidden_groups=2)
    model, inputs = made("AlbertModel", config, input_ids=ids(6))
    seen = seen_of(model, inputs)
    assert layers_of(seen) == [("text", number) for number in range(4)]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
    np.testing.assert_allclose(seen.weights(layer=2), expected[2].numpy(), atol=1e-6)


def test_numbers_and_streams_are_in_the_atlas(tmp_path: Any, tokenizer: Any) -> None:
    seen = seen_of(*mllama(), tokenizer=tokenizer)
    seen.save(tmp_path / "it.atlas")
    again = regard.load_atlas(tmp_path / "it.atlas")
    assert layers_of(again) == layers_of(seen)
    assert again.tokens == seen.tokens
    np.testing.assert_array_equal(again.weights(layer=2, stream="text"), seen.weights(layer=2, stream="text"))


@pytest.mark.parametrize("images", [(0, 1), (1, 0), (1, 1)])
def test_texts_generated_one_after_the_other_have_their_own_images_and_tokens(
    tokenizer: Any, images: tuple[int, ...]
) -> None:
    """`generate` runs the tower before it calls the model."""
    model, _ = llava()
    prompts = [ids(24, slice(2, 18)) if image else ids(5 + at) for at, image in enumerate(images)]
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
        texts = [
            model.generate(
                input_ids=prompt, max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0,
                **({"pixel_values": PIXELS} if image else {}),
            )
            for prompt, image in zip(prompts, images, strict=True)
        ]  # fmt: skip
    assert [len(one.layers) for one in seen] == [4 if image else 2 for image in images]
    for record, text in zip(seen, texts, strict=True):
        assert [one.text for one in record.tokens["text"][0]] == [WORDS[one] for one in text[0, :-1].tolist()]


@pytest.mark.parametrize("kind", ["TimeSeriesTransformer", "Informer"])
def test_a_decoder_whose_text_is_cut_from_the_encoders_tensor_crosses_to_it(kind: str) -> None:
    """Past and future values are parts of one tensor, so keys and queries have one origin: all were called self."""
    sizes = {"d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    config = getattr(transformers, f"{kind}Config")(
        **sizes, prediction_length=4, context_length=6, lags_sequence=[1, 2], num_time_features=1
    )
    model = getattr(transformers, f"{kind}Model")(config).eval()
    given = {"past_values": (2, 8), "past_time_features": (2, 8, 1), "future_values": (2, 4)}
    given |= {"future_time_features": (2, 4, 1), "past_observed_mask": (2, 8)}
    with torch.no_grad(), regard.watch(model) as seen:
        model(**{name: torch.rand(shape) for name, shape in given.items()})
    kinds = {one.name: (one.kind, one.query_tokens) for one in seen.record.layers}
    for layer in range(2):
        assert kinds[f"encoder.layers.{layer}.self_attn"][0] == "self"
        assert kinds[f"decoder.layers.{layer}.self_attn"] == ("self", "target")
        assert kinds[f"decoder.layers.{layer}.encoder_attn"] == ("cross", "target")


class OwnLatents(nn.Module):
    """A resampler written by hand: latents attend to an image beside themselves, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 3, 8))
        self.layers = nn.ModuleList(nn.ModuleDict({name: nn.Linear(8, 8) for name in "qkv"}) for _ in range(2))

    def forward(self, image: Tensor) -> Tensor:
        latents = self.latents.expand(len(image), -1, -1)
        for layer in self.layers:
            keys = torch.cat([image, latents], 1)
            q, k, v = (layer[name](one)[:, None] for name, one in (("q", latents), ("k", keys), ("v", keys)))
            latents = latents + nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]
        return latents


def test_both_layers_of_a_resampler_are_of_one_kind() -> None:
    """The latents of the first are learned vectors, and were taken for another text than the keys made of them."""
    with torch.no_grad(), regard.watch(model := OwnLatents()) as seen:
        model(torch.randn(2, 5, 8))
    assert [one.kind for one in seen.record.layers] == ["self", "self"]


class ClassAttention(nn.Module):
    """A class token attends to itself and to patches, in layers of its own (CaiT of vit_pytorch)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.layers = nn.ModuleList(nn.ModuleDict({name: nn.Linear(8, 8) for name in "qkv"}) for _ in range(2))
        self.norm = nn.LayerNorm(8)

    def forward(self, patches: Tensor) -> Tensor:
        token = self.token.expand(len(patches), -1, -1)
        for layer in self.layers:
            normed = self.norm(token)
            keys = torch.cat([normed, patches], 1)
            q, k, v = (layer[name](one)[:, None] for name, one in (("q", normed), ("k", keys), ("v", keys)))
            token = token + nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]
        return token


@pytest.mark.parametrize("batch", [1, 2])
def test_a_class_token_is_among_its_keys_in_any_batch(batch: int) -> None:
    with torch.no_grad(), regard.watch(model := ClassAttention()) as seen:
        model(torch.randn(batch, 5, 8))
    assert [(one.kind, one.number) for one in seen.record.layers] == [("self", 0), ("self", 1)]


class Towers(nn.Module):
    """Two encoders that put the same token before their inputs; one then looks at the other."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = (torch.cat([self.token.expand(len(one), -1, -1), one], 1) for one in (x, y))
        return torch.softmax(self.q(x) @ self.k(y).mT, -1) @ y


def test_a_token_that_two_inputs_share_makes_no_self_attention_of_theirs() -> None:
    with torch.no_grad(), regard.watch(model := Towers()) as seen:
        model(torch.randn(1, 4, 8), torch.randn(1, 6, 8))
    assert seen.layer(0).kind == "cross"


class Memory(nn.Module):
    """A memory network: a question looks at the sentences of a story, without a projection between."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.question, self.story = nn.Embedding(11, 8), nn.Embedding(11, 8)
        self.how = how

    def forward(self, question: Tensor, story: Tensor) -> Tensor:
        q = self.question(question)
        if self.how == "sum":
            q = q.sum(1, keepdim=True)
        k = self.story.weight[story] if self.how == "index" else self.story(story)
        if self.how == "sdpa":
            return nn.functional.scaled_dot_product_attention(q, k, k)
        return torch.softmax(q @ k.mT, -1) @ k


def test_embeddings_of_two_texts_are_cross_attention_without_projections() -> None:
    for case in sweep(itertools.product(["hand", "sum", "index", "sdpa"], [(4, 6), (6, 4), (5, 5)])):
        with case as (how, sizes):
            ids = [torch.randint(0, 11, (2, size)) for size in sizes]
            model = Memory(how)
            with regard.watch(model) as seen:
                model(*ids)
            assert (seen.layer(0).kind, seen.layer(0).query_tokens, seen.layer(0).key_tokens) == (
                "cross",
                "target",
                "source",
            )


def test_embeddings_of_one_text_are_self_attention_without_projections() -> None:
    """The last positions of a text are a part of it, in two tables too."""
    for case in sweep(["hand", "index", "sdpa"]):
        with case as how:
            model, text = Memory(how), torch.randint(0, 11, (2, 7))
            for question in (text, text[:, -3:]):
                with regard.watch(model) as seen:
                    model(question, text)
                assert seen.layer(0).kind == "self"


class Jagged(nn.Module):
    """Attention between jagged tensors: of a text to itself, of another text or of a learned query (NaViT's) to it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.query = how, nn.Parameter(torch.randn(8))
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, text: Tensor, other: Tensor, lengths: list[int]) -> Tensor:
        parts = {"self": text.split(lengths), "other": other.split(lengths), "learned": [self.query[None]] * 2}
        k, q = (torch.nested.nested_tensor(list(one), layout=torch.jagged) for one in (parts["self"], parts[self.how]))
        q, k = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.q(q), self.kv(k)))
        torch.zeros(9, 8)[:2] = text[:2]  # in inference mode all tensors are searched for those that share its memory
        return nn.functional.scaled_dot_product_attention(q, k, k)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_tensors_are_followed_to_where_their_parts_come_from() -> None:
    """Attention between jagged tensors was self-attention, unless there were more queries than keys."""
    kinds = {"self": "self", "other": "cross", "learned": "cross"}
    for case in sweep(itertools.product(kinds, [[5, 3], [1, 1]])):
        with case as (how, lengths):
            model = Jagged(how)
            for context in (torch.no_grad(), torch.inference_mode()):
                with context, regard.watch(model) as seen:
                    model(torch.randn(sum(lengths), 8), torch.randn(sum(lengths), 8), lengths)
                assert seen.layer(0).kind == kinds[how]


def test_pooled_keys_are_positions_of_their_own() -> None:
    """Rows began at a negative position, and a cell of pooled keys shared the stream of as many patches."""
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 2, 1, 1], attn_implementation="eager", num_attention_heads=[1, 2, 2, 2]
    )
    model, inputs = made("SegformerModel", config, pixel_values=torch.rand(1, 3, 64, 64), output_attentions=True)
    with torch.no_grad(), regard.watch(model, keep="weights", statistics=["distance", "sink", "self"]) as seen:
        output = model(**inputs)
    sizes = [(256, 4), (64, 4), (64, 4), (16, 4), (4, 4)]
    assert [(one.kind, one.queries, one.keys, one.number) for one in seen.record] == [
        ("self", *size, number) for number, size in enumerate(sizes)
    ]
    assert [(one.query_tokens, one.key_tokens) for one in seen.record] == [
        ("image", "image 2"),
        ("image 3", "image 2"),
        ("image 3", "image 2"),
        ("image 4", "image 2"),
        ("image 2", "image 2"),
    ]
    for layer, weights in zip(seen.record, output.attentions, strict=True):
        p = weights.double().numpy()
        i, j = np.mgrid[: layer.queries, : layer.keys]
        before = j[0] if layer.queries == layer.keys else 0  # pooled keys are before no query
        behind = p if layer.queries > layer.keys else np.tril(p)
        np.testing.assert_allclose(layer.statistics["distance"], (p * abs(i - j)).sum(-1), rtol=1e-5)
        np.testing.assert_allclose(layer.statistics["sink"], behind.sum(-2) / (layer.queries - before), rtol=1e-5)
        np.testing.assert_allclose(layer.statistics["self"], (p * (i == j)).sum(-1), rtol=1e-5)
