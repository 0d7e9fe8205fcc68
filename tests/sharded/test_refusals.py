"""What cannot be computed over shards is refused with the rule, the value and the way out."""

from dataclasses import dataclass

import pytest
import torch
from torch import distributed as dist
from torch import nn

import regard
from regard import masks
from regard.errors import InputError, ObservationError
from regard.models.output_heads import SequenceClassification
from regard.normalizers import Normalizer, Softmax
from regard.observe.statistics import PerKey
from regard.parallel import ShardedKVCache
from sweeps import sweep


@pytest.fixture(scope="module")
def mesh():
    """A mesh of one process with two axes."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "sequence"))
    dist.destroy_process_group()


def _shards(mesh, *placements, shape=(1, 2, 6, 4)):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    where = [Replicate() if one is None else Shard(one) for one in placements]
    return [distribute_tensor(torch.randn(*shape), mesh, where) for _ in range(3)]


@dataclass(frozen=True)
class _Squares(Normalizer):
    """A normalizer of one's own, of whole rows."""


REFUSALS = [
    ({"return_weights": True}, "no rank has all weights of a row"),
    ({"normalizer": _Squares()}, "it does not know how to merge _Squares"),
    ({"backend": "reference"}, 'must be "auto" or "strips" where q, k and v are DTensors .*, got \'reference\''),
    ({"mask": torch.ones(3, 3, dtype=torch.bool)}, r"the mask must be 6 queries × 6 keys .*, got shape \(3, 3\)"),
]


def test_calls_that_cannot_be_sharded_are_refused(mesh):
    for case in sweep(REFUSALS):
        with case as (options, words):
            q, k, v = _shards(mesh, None, 2)
            with pytest.raises(InputError, match=words):
                regard.attention(q, k, v, **options)


def test_placements_that_cannot_be_computed_are_refused(mesh):
    q, k, v = _shards(mesh, None, 2)
    with pytest.raises(InputError, match="must be sharded along its sequence, its heads or its first dimension"):
        regard.attention(*_shards(mesh, None, 3))
    with pytest.raises(InputError, match="must be sharded along one axis of the mesh"):
        regard.attention(*_shards(mesh, 2, 2))
    with pytest.raises(InputError, match=r"all be DTensors or none of them, got a Tensor for `k`"):
        regard.attention(q, k.full_tensor(), v)
    with pytest.raises(InputError, match="sharded over sequences and heads as `q` is"):
        regard.attention(q, *_shards(mesh, 1, 2)[1:])
    with pytest.raises(InputError, match='what the ranks of a sharded sequence compute is "strips"'):
        regard.attention(*(x.full_tensor() for x in (q, k, v)), backend="sharded")


def test_replicated_tensors_are_sharded_on_the_way(mesh):
    q, _, v = _shards(mesh, None, 2)
    _, replicated, _ = _shards(mesh, None, None)
    expected = regard.attention(q.full_tensor(), replicated.full_tensor(), v.full_tensor())
    torch.testing.assert_close(regard.attention(q, replicated, v).full_tensor(), expected)


def test_a_sequence_needs_one_axis_and_a_free_mask(mesh):
    x = torch.arange(6)[None]
    with pytest.raises(InputError, match=r"`mesh` must have one axis, got 2: take the one of the sequence"):
        regard.shard_sequence(x, mesh)
    with pytest.raises(InputError, match="that is not bound, or None, got BoundMask"):
        regard.shard_sequence(x, mesh["sequence"], masks.Causal().bind(6, 6))
    with pytest.raises(InputError, match="`dim` must be a dimension of x, which has 2, got 2"):
        regard.shard_sequence(x, mesh["sequence"], dim=2)
    with pytest.raises(InputError, match="`x` must not require gradients"):
        regard.shard_sequence(torch.zeros(1, 6, 4, requires_grad=True) * 2, mesh["sequence"])
    order = regard.shard_sequence(x, mesh["sequence"], masks.Causal())
    assert order.position_ids.tolist() == list(range(6))
    with pytest.raises(InputError, match="is for 6 tokens on 1 ranks, got 5 queries and 5 keys"):
        regard.attention(*_shards(mesh, None, 2, shape=(1, 2, 5, 4)), mask=order.mask)


class _Model(nn.Module):
    """Attention of token ids to themselves, by PyTorch's function."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)

    def forward(self, input_ids, attn_mask=None, labels=None):
        x = self.embedding(input_ids)[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask, is_causal=attn_mask is None)


def test_a_model_says_what_it_cannot_shard(mesh):
    model, ids = _Model(), torch.arange(7)[None]
    expected = model(ids)
    with regard.sequence_parallel(model, mesh["sequence"]) as shards:
        torch.testing.assert_close(shards.gather(model(input_ids=ids).movedim(1, 2)).movedim(2, 1), expected)
        with pytest.raises(
            InputError, match=r"`attn_mask` of F\.scaled_dot_product_attention knows this rank's tokens"
        ):
            model(ids, attn_mask=torch.ones(7, 7, dtype=torch.bool))
        with pytest.raises(InputError, match="`labels` are sharded for transformers' causal language models, not for"):
            model(ids, labels=ids)
        with pytest.raises(InputError, match="must have this rank's 7 tokens of 7, got"):
            regard.attention(*torch.randn(3, 1, 1, 5, 4))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    torch.testing.assert_close(model(ids), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder_layers": 1}, "an encoder or a decoder, .*, and Transformer is encoder-decoder: shard q, k and v"),
        ({"output_head": SequenceClassification()}, "an output head of each token, and SequenceClassification"),
    ],
)
def test_a_transformer_with_two_sequences_or_one_answer_a_text_is_refused(mesh, changes, words):
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "decoder_layers": 1}
    model = regard.models.Transformer(regard.models.TransformerConfig(**sizes | changes))
    with pytest.raises(InputError, match=words), regard.sequence_parallel(model, mesh["sequence"]):
        pass


def test_a_compiled_model_of_regard_is_refused(mesh):
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "decoder_layers": 1}
    for case in sweep(["a wrapper", "in place"]):
        with case as how:
            model = regard.models.Transformer(regard.models.TransformerConfig(**sizes))
            compiled = torch.compile(model, backend="eager") if how == "a wrapper" else model
            model.compile(backend="eager") if how == "in place" else None
            words = "`model` must not be compiled: .* pass the model as it was before"
            with pytest.raises(InputError, match=words), regard.sequence_parallel(compiled, mesh["sequence"]):
                pass


class _Drops(nn.Module):
    """Dropout of one state a text."""

    def forward(self, input_ids):
        return nn.functional.dropout(input_ids.float(), 0.5)


def test_dropout_without_a_sequence_is_refused(mesh):
    model, ids = _Drops(), torch.arange(7)[None]
    words = r"must be \(batch, 7 tokens of this rank, width\), got \(1, 7\): set dropout = 0"
    with pytest.raises(InputError, match=words), regard.sequence_parallel(model, mesh["sequence"]):
        model(ids)
    assert model(ids).shape == (1, 7)


def test_a_sharded_cache_is_for_decoding(mesh):
    cache = ShardedKVCache(mesh["sequence"])
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    with pytest.raises(InputError, match=r"the cache is empty: call update\(k, v\) first"):
        cache.attend(q)
    cache.update(k, v)
    with pytest.raises(InputError, match=r"for decoding, without gradients: shard q along its sequence too, or use"):
        cache.attend(q.requires_grad_())
    with pytest.raises(InputError, match="`mesh` must have one axis, got 2"):
        ShardedKVCache(mesh)


class _Attends(nn.Module):
    """One call of attention."""

    def forward(self, q, k, v):
        return regard.attention(q, k, v, mask=masks.Causal())


class _OfAllHeads(PerKey):
    """A statistic of one's own that says that it is one of each head, and gives one number for all."""

    name = "of_all_heads"
    by_head = True

    def of(self, rows):
        return rows.column_sums

    def finish(self, extent):
        return {self.name: self.sums(extent).sum(1, keepdim=True).numpy()}


STATISTICS = [
    ("importance", "'importance' needs the gradients of whole rows, .* leave it out, or watch the whole sequence"),
    ("gradient_x_attention", "'gradient_x_attention' needs the gradients of whole rows"),
    (_OfAllHeads(), r"'of_all_heads' must give \(batch, heads, ...\), here \(1, 2, ...\), got shape .*`by_head"),
]


def test_statistics_that_ranks_cannot_compute_are_refused_by_name(mesh):
    for case in sweep(STATISTICS, name=lambda refusal: refusal[1]):
        with case as (statistic, words):
            model = _Attends()
            with pytest.raises(ObservationError, match=words), regard.watch(model, statistics=[statistic]):
                model(*_shards(mesh, None, 2))


def test_a_kernel_processes_the_heads_of_each_rank(mesh):
    model = _Attends()
    with regard.use_backend("native"), regard.watch(model) as seen:
        model(*_shards(mesh, None, 2))
    assert not seen.fallback_reasons


def test_a_tap_refuses_a_sharded_sequence(mesh):
    model = _Attends()
    words = "the sequence of a call is sharded over ranks, and a tap reads rows of whole sequences"
    with pytest.raises(ObservationError, match=words), regard.tap(model, heads=[(0, 0)]):
        model(*_shards(mesh, None, 2))
    model, ids = _Model(), torch.arange(7)[None]
    tap = regard.tap(model, heads=[(0, 0)])
    with pytest.raises(ObservationError, match=words), tap, regard.sequence_parallel(model, mesh["sequence"]):
        model(ids)
    tap = regard.tap(model, heads=[(0, 0)])
    with pytest.raises(ObservationError, match=words), regard.sequence_parallel(model, mesh["sequence"]), tap:
        model(ids)


def test_second_derivatives_are_refused_also_of_what_is_linear(mesh):
    words = "attention over several ranks has no second derivative: compute it in one process"
    for case in sweep([torch.sum, lambda x: (x**2).sum()]):
        with case as loss:
            q, k, v = (x.requires_grad_() for x in _shards(mesh, None, 2))
            (gradient,) = torch.autograd.grad(loss(regard.attention(q, k, v)), q, create_graph=True)
            with pytest.raises(InputError, match=words):
                gradient.square().sum().backward()


def test_only_shard_and_replicate_are_taken(mesh):
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.placement_types import _StridedShard

    # As `flatten` makes it of heads that are sharded.
    x = DTensor.from_local(torch.randn(8, 6, 4), mesh, [Replicate(), _StridedShard(0, split_factor=2)])
    with pytest.raises(InputError, match="must be Shard or Replicate on each axis of the mesh"):
        regard.attention(x, x, x)


def test_what_has_no_known_order_does_not_go_with_a_mask_of_shard_sequence(mesh):
    _, whole, _ = _shards(mesh["sequence"], None)
    k, v = (regard.shard_sequence(torch.randn(1, 2, 6, 4), mesh["sequence"], masks.Causal(), dim=2) for _ in range(2))
    with pytest.raises(InputError, match="`k` must be sharded by shard_sequence too"):
        regard.attention(k.tensor, whole, v.tensor, mask=k.mask)
    assert regard.attention(whole, k.tensor, v.tensor, mask=k.mask).shape == whole.shape
    with pytest.raises(InputError, match="`q` must be sharded by shard_sequence too"):
        regard.attention(whole.requires_grad_(), k.tensor, v.tensor, mask=k.mask)


def test_a_sink_that_takes_nothing_has_no_gradient_of_rows_that_see_nothing(mesh):
    q, k, v = _shards(mesh, None, 2)
    sink, mask = torch.tensor([-torch.inf, 0.5], requires_grad=True), masks.Dense(torch.arange(6)[:, None] > 0)
    regard.attention(q, k, v, mask=mask, normalizer=Softmax(sink)).sum().backward()
    (alone,) = torch.autograd.grad(
        regard.attention(
            *(x.full_tensor() for x in (q, k, v)), mask=mask, normalizer=Softmax(sink), backend="strips"
        ).sum(),
        sink,
    )
    assert torch.equal(alone, sink.grad) or torch.allclose(alone, sink.grad, rtol=1e-5)


def test_a_cache_takes_no_option_that_it_would_ignore(mesh):
    cache = ShardedKVCache(mesh["sequence"])
    cache.update(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    with torch.no_grad(), pytest.raises(TypeError, match="unexpected keyword argument 'return_lse'"):
        cache.attend(torch.randn(1, 2, 1, 4), return_lse=True)


def test_a_mask_that_is_bound_elsewhere_is_refused_inside_sequence_parallel(mesh):
    class Attends(nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.mask = mask

        def forward(self, inputs_embeds):
            x = inputs_embeds[:, None]
            return regard.attention(x, x, x, mask=self.mask)

    x, usual, other = torch.randn(1, 6, 4), masks.Causal().bind(6, 6), masks.Causal().bind(6, 6, 3)
    with regard.sequence_parallel(model := Attends(usual), mesh["sequence"]):
        assert model(inputs_embeds=x).shape == (1, 1, 6, 4)
    with (
        pytest.raises(InputError, match="a mask that is bound to the place 3: give it unbound"),
        regard.sequence_parallel(model := Attends(other), mesh["sequence"]),
    ):
        model(inputs_embeds=x)


def test_explain_shows_the_plan(mesh):
    q, k, v = _shards(mesh, None, 2)
    lines = str(regard.explain(q, k, v, mask=masks.Causal())).splitlines()
    assert lines[0] == "strips runs it"
    assert lines[2:-2] == [
        "6 tokens over 1 ranks, 6 each; rows are computed where they are",
        "the mask leaves 100.00% of the pairs, in blocks; the busiest rank has 1.00 × the mean work",
        "0 of 0 rounds send keys",
        "forward, a rank sends 0 B on average, 0 B at most; backward 0 B on average, 0 B at most",
    ]
    refused = str(regard.explain(q, k, v, return_weights=True)).splitlines()
    assert refused == ["strips cannot run it", "strips refused: over several ranks, no rank has all weights of a row"]
