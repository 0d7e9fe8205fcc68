"""Attention modules of transformers with random weights: their projections, our attention, their output.

Each model runs whole, so that its masks, positions and angles are its own; one attention module is listened to, and
computed again from what went in. Some compute softmax or angles in float32, whatever the type of the model: they agree
to 1e-5 instead of 1e-10.
"""

import contextlib
import math
from itertools import product

import pytest
import torch

import regard
from regard import masks, positions
from regard.normalizers import Softmax
from regard.scores import ScaledDot
from sweeps import sweep

transformers = pytest.importorskip("transformers")

N, WIDTH, HEADS = 150, 32, 4
SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2, "vocab_size": 50}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 256}
SHORT = {"max_position_embeddings": 256}

every_backend = pytest.mark.parametrize("backend", ["auto", "strips"])


def _built(kind, config, implementation="eager", **options):
    torch.manual_seed(0)
    config._attn_implementation = implementation
    model = getattr(transformers, kind)(config, **options).double().eval()
    for name, one in model.named_parameters():
        if one.ndim > 1:  # 1/√fan-in: HF's 0.02 leaves nearly uniform weights, which hide errors
            torch.nn.init.normal_(one, std=one.shape[-1] ** -0.5)
        elif name.endswith(("bias", "sinks")):
            torch.nn.init.normal_(one)
    return model


def _heard(model, module, **inputs):
    """What goes into one module while the model runs, and what comes out."""
    heard = []

    def listen(module, args, kwargs, output):
        heard.append((args[0] if args else kwargs["hidden_states"], output[0]))

    ids = torch.randint(1, 50, (2, N), generator=torch.Generator().manual_seed(1))
    with contextlib.closing(_Hook(module.register_forward_hook(listen, with_kwargs=True))), torch.no_grad():
        model(input_ids=ids, **inputs)
    assert len(heard) == 1
    return heard[0]


class _Hook:
    def __init__(self, handle):
        self.close = handle.remove


def _split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _joined(x):
    return x.transpose(1, 2).flatten(2)


def _agree(ours, theirs, atol=1e-5, rows=None):
    if rows is not None:
        ours, theirs = ours[rows], theirs[rows]
    assert theirs.std() > 0.05
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=0, atol=atol)


def _padded():
    """The first sequence is shorter: 1 where there is a token."""
    real = torch.ones(2, N, dtype=torch.long)
    real[0, 110:] = 0
    return real


def test_bert():
    for case in sweep(product(["auto", "strips"], [False, True], ["eager", "sdpa"])):
        with case as (backend, padded, implementation):
            config = transformers.BertConfig(**SIZES, **SHORT, intermediate_size=64)
            model = _built("BertModel", config, implementation)
            module, real = model.encoder.layer[0].attention.self, _padded()
            x, theirs = _heard(model, module, **({"attention_mask": real} if padded else {}))
            q, k, v = (_split(one(x), HEADS) for one in (module.query, module.key, module.value))
            mask = masks.from_attention_mask(real) if padded else None
            _agree(_joined(regard.attention(q, k, v, mask=mask, backend=backend)), theirs, 1e-10)


def test_gpt2():
    for case in sweep(product(["auto", "strips"], ["eager", "sdpa"])):
        with case as (backend, implementation):
            config = transformers.GPT2Config(n_embd=WIDTH, n_head=HEADS, n_layer=2, n_positions=256, vocab_size=50)
            model = _built("GPT2Model", config, implementation)
            module = model.h[1].attn
            x, theirs = _heard(model, module)
            q, k, v = (_split(one, HEADS) for one in module.c_attn(x).chunk(3, -1))
            ours = regard.attention(q, k, v, mask=masks.Causal(), backend=backend)
            _agree(module.c_proj(_joined(ours)), theirs, 1e-10)


def _llama_like(model, layer, backend, **options):
    """Separate projections, grouped heads and rotated halves, as nearly all have had them since Llama."""
    module = model.layers[layer].self_attn
    x, theirs = _heard(model, module)
    q, k, v = (
        _split(project(x), heads) for project, heads in ((module.q_proj, HEADS), (module.k_proj, 2), (module.v_proj, 2))
    )
    rotary = positions.RoPE.from_transformers(model.config, interleaved=False)
    ours = regard.attention(q, k, v, rotary=rotary, scale=module.scaling, backend=backend, **options)
    _agree(module.o_proj(_joined(ours)), theirs)


@every_backend
def test_llama(backend):
    model = _built("LlamaModel", transformers.LlamaConfig(**GROUPED))
    _llama_like(model, 1, backend, mask=masks.Causal())


@every_backend
def test_mistral(backend):
    model = _built("MistralModel", transformers.MistralConfig(**GROUPED, sliding_window=20))
    _llama_like(model, 1, backend, mask=masks.Causal() & masks.Window(20))


def test_gemma2():
    for case in sweep(product(["auto", "strips"], [0, 1])):
        with case as (backend, layer):
            config = transformers.Gemma2Config(
                **GROUPED, sliding_window=20, attn_logit_softcapping=2.0, query_pre_attn_scalar=30
            )
            model = _built("Gemma2Model", config)
            seen = (
                masks.Causal() & masks.Window(20)
                if config.layer_types[layer] == "sliding_attention"
                else masks.Causal()
            )
            assert model.layers[layer].self_attn.scaling == 30**-0.5
            _llama_like(model, layer, backend, mask=seen, score=ScaledDot(softcap=2.0))


def test_gpt_oss():
    for case in sweep(product(["auto", "strips"], [0, 1])):
        with case as (backend, layer):
            config = transformers.GptOssConfig(**GROUPED, sliding_window=20, num_local_experts=2, num_experts_per_tok=1)
            model = _built("GptOssModel", config).float()  # its experts' product knows no float64
            seen = (
                masks.Causal() & masks.Window(20)
                if config.layer_types[layer] == "sliding_attention"
                else masks.Causal()
            )
            sinks = model.layers[layer].self_attn.sinks
            assert sinks.abs().min() > 0
            _llama_like(model, layer, backend, mask=seen, normalizer=Softmax(sinks))


@every_backend
def test_gptj(backend):
    config = transformers.GPTJConfig(
        n_embd=WIDTH, n_head=HEADS, n_layer=2, rotary_dim=4, vocab_size=50, n_positions=256
    )
    model = _built("GPTJModel", config)
    module = model.h[1].attn
    x, theirs = _heard(model, module)
    q, k, v = (_split(one(x), HEADS) for one in (module.q_proj, module.k_proj, module.v_proj))
    rotary = positions.RoPE(8, rotary_dim=4, interleaved=True)
    ours = regard.attention(q, k, v, rotary=rotary, mask=masks.Causal(), backend=backend)
    _agree(module.out_proj(_joined(ours)), theirs)


@every_backend
@pytest.mark.parametrize("heads", [4, 8])
def test_bloom(backend, heads):
    config = transformers.BloomConfig(hidden_size=WIDTH, n_head=heads, n_layer=2, vocab_size=50, hidden_dropout=0.0)
    model = _built("BloomModel", config)
    module = model.h[1].self_attention
    heard = {}  # the module adds the residual: what goes into its last map is the attention
    with contextlib.closing(_Hook(module.dense.register_forward_hook(lambda m, args, out: heard.update(out=args[0])))):
        x, _ = _heard(model, module)
    # Each head has its q, k and v side by side.
    q, k, v = module.query_key_value(x).unflatten(-1, (heads, 3, -1)).permute(3, 0, 2, 1, 4)
    ours = regard.attention(q, k, v, bias=positions.ALiBi(heads), mask=masks.Causal(), backend=backend)
    _agree(_joined(ours), heard["out"])


def test_t5():
    for case in sweep(product(["auto", "strips"], [False, True])):
        with case as (backend, decoder):
            config = transformers.T5Config(
                d_model=WIDTH,
                d_kv=8,
                d_ff=64,
                num_heads=HEADS,
                num_layers=1,
                vocab_size=50,
                relative_attention_num_buckets=16,
                relative_attention_max_distance=60,
            )
            model = _built("T5Model", config)
            stack = model.decoder if decoder else model.encoder
            module = stack.block[0].layer[0].SelfAttention
            ids = torch.randint(1, 50, (2, N), generator=torch.Generator().manual_seed(1))
            x, theirs = _heard(model, module, decoder_input_ids=ids)
            q, k, v = (_split(one(x), HEADS) for one in (module.q, module.k, module.v))
            bias = positions.T5Bias(module.relative_attention_bias.weight, bidirectional=not decoder, max_distance=60)
            mask = masks.Causal() if decoder else None
            ours = regard.attention(q, k, v, bias=bias, mask=mask, scale=1.0, backend=backend)
            _agree(module.o(_joined(ours)), theirs)


def test_longformer():
    for case in sweep(product(["auto", "strips"], [(), (0, 5, 80)], [False, True])):
        with case as (backend, global_tokens, padded):
            window = 16
            config = transformers.LongformerConfig(
                **SIZES, intermediate_size=64, attention_window=window, max_position_embeddings=256
            )
            model = _built("LongformerModel", config)
            module, real = (
                model.encoder.layer[0].attention.self,
                _padded() if padded else torch.ones(2, N, dtype=torch.long),
            )
            flags = torch.zeros(2, N, dtype=torch.long)
            flags[:, list(global_tokens)] = 1
            x, theirs = _heard(model, module, attention_mask=real, global_attention_mask=flags)
            x, theirs = x[:, :N], theirs[:, :N]  # the model fills up to a multiple of the window
            seen = masks.Padding(real.bool())
            q, k, v = (_split(one(x), HEADS) for one in (module.query, module.key, module.value))
            local = (
                masks.longformer(window, global_positions=global_tokens)
                if global_tokens
                else masks.Window(left=8, right=8)
            )
            ours = _joined(regard.attention(q, k, v, mask=local & seen, backend=backend)).clone()
            if global_tokens:
                # The rows of global tokens have projections of their own.
                q, k, v = (
                    _split(one(x), HEADS) for one in (module.query_global, module.key_global, module.value_global)
                )
                rows = list(global_tokens)
                everywhere = _joined(regard.attention(q[:, :, rows], k, v, mask=seen, backend=backend))
                ours[:, rows] = everywhere
            _agree(ours, theirs, rows=real.bool())
            assert (theirs[~real.bool()] == 0).all()  # theirs gives 0 for padded queries, ours what they see


def _bigbird(training, attention_type="block_sparse"):
    n, block = 160, 16
    config = transformers.BigBirdConfig(
        **SIZES,
        intermediate_size=64,
        max_position_embeddings=256,
        attention_type=attention_type,
        block_size=block,
        num_random_blocks=2,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    model = _built("BigBirdModel", config)
    model.train(training)
    module = model.encoder.layer[0].attention.self
    plans = []
    if attention_type == "block_sparse":
        make = module._create_rand_mask_from_inputs
        module._create_rand_mask_from_inputs = lambda *args: (plans.append(args[2].clone()), make(*args))[1]
    ids = torch.randint(1, 50, (2, n), generator=torch.Generator().manual_seed(1))
    heard = []
    hook = module.register_forward_hook(lambda m, args, out: heard.append((args[0], out[0])))
    with contextlib.closing(_Hook(hook)), torch.no_grad():
        model(input_ids=ids)
    ((x, theirs),) = heard
    q, k, v = (_split(one(x), HEADS) for one in (module.query, module.key, module.value))
    return q, k, v, theirs, plans, block


def _near_and_global(blocks):
    """Which block rows see which blocks, without the random ones: the first and last row see all."""
    seen = torch.zeros(blocks, blocks, dtype=torch.bool)
    for row in range(blocks):
        seen[row, max(0, row - 1) : row + 2] = True
    seen[[0, -1]], seen[:, [0, -1]] = True, True
    seen[1, 2], seen[-2, -3] = True, True
    return seen


@every_backend
def test_bigbird_with_the_blocks_that_it_draws(backend):
    # In training it draws blocks (and has no dropout here), none twice: each pair counts once, as with us.
    q, k, v, theirs, plans, block = _bigbird(training=True)
    blocks = q.shape[2] // block
    seen = _near_and_global(blocks).repeat(HEADS, 1, 1)
    assert plans[0].shape == (2, HEADS, blocks - 2, 2)
    drawn = torch.zeros_like(seen)
    for head in range(HEADS):
        for row in range(1, blocks - 1):
            drawn[head, row, plans[0][0, head, row - 1]] = True
    assert not (drawn & seen).any()
    assert int(drawn.sum()) == 2 * HEADS * (blocks - 2)
    pairs = (seen | drawn).repeat_interleave(block, 1).repeat_interleave(block, 2)[None]
    _agree(_joined(regard.attention(q, k, v, mask=pairs, backend=backend)), theirs, 1e-10)


@every_backend
def test_bigbird_in_eval_counts_the_first_block_once_more_for_each_that_it_does_not_draw(backend):
    q, k, v, theirs, plans, block = _bigbird(training=False)
    assert (plans[0] == 0).all()
    seen = masks.bigbird(num_window_blocks=3, num_global_blocks=1, num_random_blocks=1, block=block, seed=0)
    blocks = q.shape[2] // block
    pairs = _near_and_global(blocks).repeat_interleave(block, 0).repeat_interleave(block, 1)
    assert (seen.bind(len(pairs), len(pairs)).dense()[0, 0] | ~pairs).all()  # ours sees these and the random ones
    thrice = torch.zeros(len(pairs), len(pairs), dtype=torch.float64)
    thrice[block:-block, :block] = math.log(3)
    _agree(_joined(regard.attention(q, k, v, mask=pairs, bias=thrice, backend=backend)), theirs, 1e-10)


@every_backend
def test_bigbird_with_full_attention(backend):
    q, k, v, theirs, _, _ = _bigbird(training=False, attention_type="original_full")
    _agree(_joined(regard.attention(q, k, v, backend=backend)), theirs, 1e-10)
