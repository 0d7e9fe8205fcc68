"""DeBERTa's disentangled score, against transformers' modules: outputs and the gradients of all parameters."""

from itertools import product

import pytest
import torch

import regard
from backend_lists import GENERAL
from regard.errors import InputError
from regard.problem import Problem
from regard.scores import DeBERTa
from regard.scores.deberta import _log_buckets
from sweeps import sweep

HEADS, DIM, SERVED = 2, 12, ["reference", "strips"]
HIDDEN = HEADS * DIM


def compare(module, embeddings, make, x, backend):
    """Output and gradients of transformers' module and of regard.attention with its projections."""
    n = x.shape[1]
    expected = module(x, torch.ones(1, 1, n, n), rel_embeddings=embeddings, relative_pos=relative(module, x))[0]
    q, k, v = make.projected(module, x)
    score = make(module, embeddings)
    theirs = 1 / torch.tensor(score.default_scale(DIM) ** -2).round().sqrt().double().item()  # a root in float32
    assert score.default_scale(DIM) == pytest.approx(theirs, rel=1e-7)
    ours = regard.attention(q, k, v, score=score, scale=theirs, backend=backend).transpose(1, 2).flatten(2)
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=0)
    leaves = [x, embeddings, *module.parameters()]
    cotangent = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(1))
    wanted = torch.autograd.grad(expected, leaves, cotangent, allow_unused=True)
    for mine, theirs in zip(torch.autograd.grad(ours, leaves, cotangent, allow_unused=True), wanted, strict=True):
        if theirs is None:
            assert mine is None
        else:
            torch.testing.assert_close(mine, theirs, atol=1e-11 * max(1.0, theirs.abs().max().item()), rtol=0)


def relative(module, x):
    """What DebertaV2Encoder and DebertaEncoder hand to each layer."""
    if hasattr(module, "in_proj"):
        from transformers.models.deberta.modeling_deberta import build_relative_position

        return build_relative_position(x, x)
    from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

    return build_relative_position(
        x, x, bucket_size=module.position_buckets, max_position=module.max_relative_positions
    )


def second(module, embeddings):
    """The score of a layer of v2 and v3."""
    share = module.share_att_key
    keys = module.key_proj if share else getattr(module, "pos_key_proj", None)
    queries = module.query_proj if share else getattr(module, "pos_query_proj", None)
    return DeBERTa.from_embeddings(
        embeddings,
        HEADS,
        pos_key_proj=keys if "c2p" in module.pos_att_type else None,
        pos_query_proj=queries if "p2c" in module.pos_att_type else None,
        position_buckets=module.position_buckets,
        max_relative_positions=module.max_relative_positions,
    )


second.projected = lambda module, x: [
    f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (module.query_proj, module.key_proj, module.value_proj)
]


def first(module, embeddings):
    """The score of a layer of v1."""
    return DeBERTa.from_embeddings(
        embeddings,
        HEADS,
        pos_key_proj=getattr(module, "pos_proj", None),
        pos_query_proj=getattr(module, "pos_q_proj", None),
        max_relative_positions=module.max_relative_positions,
    )


def _first_projected(module, x):
    q, k, v = module.in_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(3, -1)
    bias = [one.view(HEADS, 1, -1) for one in (module.q_bias, module.v_bias)]
    return q + bias[0], k, v + bias[1]


first.projected = _first_projected


def built(version, seed=0, **config):
    """A module of transformers with random weights, and embeddings of distances."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "relative_attention": True}
    if version == 1:
        modeling = pytest.importorskip("transformers.models.deberta.modeling_deberta")
        module = modeling.DisentangledSelfAttention(modeling.DebertaConfig(**sizes, **config))
        rows = 2 * module.max_relative_positions
    else:
        modeling = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
        module = modeling.DisentangledSelfAttention(modeling.DebertaV2Config(**sizes, **config))
        rows = 2 * module.pos_ebd_size
    for one in module.parameters():
        torch.nn.init.normal_(one, std=HIDDEN**-0.5 if one.ndim == 2 else 0.3)
    return module.double().eval(), torch.randn(rows, HIDDEN, dtype=torch.float64, requires_grad=True)


def inputs(n, batch=2):
    x = torch.randn(batch, n, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return x.requires_grad_()


def test_version_2_is_that_of_transformers():
    cases = product(
        SERVED,
        [7, 530],
        [
            {"pos_att_type": ["c2p", "p2c"], "position_buckets": 32, "max_position_embeddings": 128},
            {
                "pos_att_type": ["c2p", "p2c"],
                "position_buckets": 256,
                "max_relative_positions": 512,
                "share_att_key": True,
            },
            {"pos_att_type": ["c2p"], "position_buckets": 8, "max_position_embeddings": 64},
            {"pos_att_type": ["p2c"], "max_relative_positions": 40},
        ],
    )
    for case in sweep(cases):
        with case as (backend, n, config):
            module, embeddings = built(2, **config)
            compare(module, embeddings, second, inputs(n, batch=1 if n > 100 else 2), backend)


def test_version_1_is_that_of_transformers():
    cases = product(
        SERVED,
        [7, 530],
        [
            {"pos_att_type": ["c2p", "p2c"], "max_relative_positions": 64},
            {"pos_att_type": ["c2p"], "max_relative_positions": -1, "max_position_embeddings": 512},
            {"pos_att_type": ["p2c"], "max_relative_positions": 5},
        ],
    )
    for case in sweep(cases):
        with case as (backend, n, config):
            module, embeddings = built(1, **config)
            compare(module, embeddings, first, inputs(n, batch=1 if n > 100 else 2), backend)


def test_these_are_all_the_cpu_backends_that_serve_it():
    x = torch.zeros(1, HEADS, 530, DIM)
    problem = Problem.of(x, x, x, score=DeBERTa(torch.zeros(HEADS, 8, DIM), None))
    assert {one.name for one in GENERAL if one.refuses(problem) is None} == set(SERVED)


def test_buckets_are_those_of_transformers():
    for case in sweep([(256, 512), (32, 128), (8, 600), (2, 512), (7, 40)]):
        with case as (buckets, most):
            modeling = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
            distance = torch.arange(-2000, 2001)
            theirs = modeling.make_log_bucket_position(distance, buckets, most).long()
            span = (0 - buckets, buckets - 1)
            torch.testing.assert_close(_log_buckets(distance, buckets, most).clamp(*span), theirs.clamp(*span))


def test_a_cache_before_the_queries_gives_the_last_rows():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, 9, DIM, dtype=torch.float64).unbind()
    score = DeBERTa(*torch.randn(2, HEADS, 8, DIM, dtype=torch.float64), 4, 20)
    whole = regard.attention(q, k, v, score=score)
    torch.testing.assert_close(regard.attention(q[:, :, -2:], k, v, score=score), whole[:, :, -2:])


X = torch.zeros(2, 4, 5, 8)
T = torch.zeros(4, 6, 8)


def test_what_does_not_fit_is_refused():
    cases = [
        (
            lambda: DeBERTa(None, None),
            r"`position_keys` or `position_queries` must be given: without both write Scaled",
        ),
        (lambda: DeBERTa(T[:, :5], None), r"`position_keys` must have 2 · span rows, .* got 5 in shape \(4, 5, 8\)"),
        (lambda: DeBERTa(T, T[:, :4]), "`position_queries` must have 2 · span rows"),
        (lambda: DeBERTa(T, None, 4, 9), "2 · span rows, .* got 6 .* with position_buckets 4 and max_relative_.* 9"),
        (lambda: DeBERTa(T, None, max_relative_positions=4), "2 · span rows, .* got 6"),
        (lambda: DeBERTa(T, None, 3), "half of it less than `max_relative_positions` − 1, got 3 and -1: give the mod"),
        (lambda: DeBERTa(T[:, :2], None, 1, 9), "`position_buckets` must be 2 or more"),
        (lambda: DeBERTa(T, None, True), "`position_buckets` must be an integer, −1 for none, got True"),
        (lambda: DeBERTa(T[0], None), r"`position_keys` must be \(heads, 2 · span, dim\) and not empty, got shape"),
        (lambda: DeBERTa(T[:2], None), r"`position_keys` must have one entry for each head of q \(4\), got 2"),
        (lambda: DeBERTa(T, T[..., :7]), r"`position_queries` must have the width of q \(8\) in dimension -1, got 7"),
        (lambda: DeBERTa(T, T.to("meta")), r"`position_queries` must be on the device of q \(cpu\), got meta"),
        (lambda: DeBERTa(T, T, softcap=0), "`softcap` must be a positive number or None, got 0"),
    ]
    for case in sweep(cases):
        with case as (score, words), pytest.raises(InputError, match=words):
            regard.attention(X, X, X, score=score())
