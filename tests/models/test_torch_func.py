"""Models under torch.func: gradients of each example, and ensembles of models, as one by one."""

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from regard.errors import InputError
from regard.models import Learned, SpecialTokens, Transformer, TransformerConfig, output_heads
from regard.positions import RoPE
from sweeps import sweep

TOKENS = torch.randint(5, 50, (3, 1, 8), generator=torch.Generator().manual_seed(0))
SEEN = torch.ones_like(TOKENS)
SEEN[1, :, 5:] = 0
LABELS = TOKENS.masked_fill(SEEN == 0, -100)
DECODER, BOTH = {"decoder_layers": 2}, {"encoder_layers": 1, "decoder_layers": 1}
SPECIAL = SpecialTokens(pad_token_id=0, decoder_start_token_id=1)
CONFIGS = {
    "sinusoidal": DECODER,
    "rotary": DECODER | {"positions": RoPE(4), "num_key_value_heads": 2},
    "learned": DECODER | {"positions": Learned(8)},
    "t5": BOTH | {"position_bias": "t5"},
    "shaw": BOTH | {"position_bias": "shaw"},
    "window": DECODER | {"sliding_window": 3},
}
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


def made(name: str, seed: int = 0, special: SpecialTokens = SPECIAL) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32, "dropout": 0.0}
    head = output_heads.LanguageModel()
    return Transformer(TransformerConfig(**sizes, **CONFIGS[name], output_head=head, special_tokens=special))


def test_gradients_of_each_example_are_those_of_examples_alone():
    for case in sweep(CONFIGS):
        with case as name:
            model = made(name)
            values = {key: one.detach() for key, one in model.named_parameters()}

            def loss(values, ids, seen, labels, model=model):
                return functional_call(model, values, (ids,), {"attention_mask": seen, "labels": labels}).loss

            found = vmap(grad(loss), (None, 0, 0, 0))(values, TOKENS, SEEN, LABELS)
            for at in range(3):
                model.zero_grad()
                model(TOKENS[at], attention_mask=SEEN[at], labels=LABELS[at]).loss.backward()
                for key, one in model.named_parameters():
                    torch.testing.assert_close(found[key][at], one.grad, msg=lambda text, key=key: f"{key}: {text}")


def test_an_ensemble_trains_as_its_models_do():
    for case in sweep(CONFIGS):
        with case as name:
            models = [made(name, seed) for seed in range(2)]
            values, buffers = stack_module_state(models)

            def loss(values, buffers, model=models[0]):
                return functional_call(model, (values, buffers), (TOKENS[:, 0],), {"labels": TOKENS[:, 0]}).loss

            vmap(loss)(values, buffers).sum().backward()
            for at, model in enumerate(models):
                model(TOKENS[:, 0], labels=TOKENS[:, 0]).loss.backward()
                for key, one in model.named_parameters():
                    torch.testing.assert_close(
                        values[key].grad[at], one.grad, msg=lambda text, key=key: f"{key}: {text}"
                    )


def test_what_is_wrong_in_one_example_is_said():
    model = made("learned")
    with pytest.raises(InputError, match="must be tokens from 0 to 49, got 50"):
        vmap(lambda ids: model(ids).logits)(torch.cat([TOKENS[:2], torch.full((1, 1, 8), 50)]))
    with pytest.raises(InputError, match=r"has 1 \(or True\) for tokens and 0 \(or False\) for padding, got 2"):
        vmap(lambda ids, seen: model(ids, attention_mask=seen).logits)(TOKENS, SEEN + 1)
    holes = SEEN.clone()
    holes[2, 0, 3] = 0
    with pytest.raises(InputError, match="padding between tokens"):
        vmap(lambda ids, seen: model(ids, attention_mask=seen).logits)(TOKENS, holes)
    model = made("t5", special=SpecialTokens(decoder_start_token_id=1))
    with pytest.raises(InputError, match="labels` of −100 need"):
        vmap(lambda ids, labels: model(ids, labels=labels).loss)(TOKENS, LABELS)
