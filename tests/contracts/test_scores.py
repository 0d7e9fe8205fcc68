"""Every score is its tile, prepared or not, whole or in parts, of all heads or some, and its tensors are learned."""

import dataclasses
import doctest
import inspect
import itertools

import numpy as np
import pytest
import torch

import regard
from regard import masks, scores
from regard.problem import Problem
from regard.values import flatten, tensors, unflatten
from sweeps import sweep

BATCH, HEADS, QUERIES, KEYS, DIM, HIDDEN = 2, 4, 5, 7, 3, 6


def _randn(*shape):
    """Numbers of variance 1 / fan-in, another draw for every shape."""
    return (
        torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))) / shape[-1] ** 0.5
    )


# For every score: some of its values, with the width of the keys that they fit. A new score needs one entry here;
# everything below then holds for it too.
EXAMPLES = {
    "Additive": [
        (scores.Additive(_randn(HIDDEN, DIM), _randn(HIDDEN, 4), _randn(HIDDEN)), 4),
        (scores.Additive(_randn(HIDDEN, DIM), _randn(HIDDEN, DIM), _randn(HEADS, HIDDEN), _randn(HIDDEN), 0.5), DIM),
        (scores.Additive(None, None, _randn(HEADS, DIM)), DIM),
        (scores.Additive(_randn(4, DIM), None, _randn(4)), 4),
    ],
    "Bilinear": [
        (scores.Bilinear(_randn(DIM, DIM)), DIM),
        (scores.Bilinear(_randn(HEADS, DIM, 5), softcap=0.5), 5),
    ],
    "Concat": [
        (scores.Concat(_randn(HIDDEN, DIM + 4), _randn(HIDDEN)), 4),
        (scores.Concat(_randn(HIDDEN, DIM + DIM), _randn(HEADS, HIDDEN), _randn(HIDDEN), softcap=0.5), DIM),
    ],
    "Cosine": [
        (scores.Cosine(), DIM),
        (scores.Cosine(temperature=torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64), softcap=0.5), DIM),
    ],
    "DeBERTa": [
        (scores.DeBERTa(_randn(HEADS, 6, DIM), _randn(HEADS, 6, DIM) + 0.1), DIM),
        (scores.DeBERTa(_randn(HEADS, 4, DIM), None, 2, 5, softcap=0.5), DIM),
        (scores.DeBERTa(None, _randn(HEADS, 8, DIM), max_relative_positions=4), DIM),
    ],
    "Dot": [(scores.Dot(), DIM), (scores.Dot(softcap=0.5), DIM)],
    "RelativeKeyQuery": [
        (scores.RelativeKeyQuery(_randn(5, DIM)), DIM),
        (scores.RelativeKeyQuery(_randn(HEADS, 4, DIM), softcap=0.5, left=1, right=2), DIM),
        (scores.RelativeKeyQuery(_randn(41, DIM)), DIM),
    ],
    "ScaledDot": [(scores.ScaledDot(), DIM), (scores.ScaledDot(softcap=0.5), DIM)],
    "Shaw": [
        (scores.Shaw(_randn(5, DIM), _randn(7, 2)), DIM),
        (scores.Shaw(_randn(HEADS, 3, DIM), _randn(HEADS, 5, 2), softcap=0.5), DIM),
        (scores.Shaw(_randn(41, DIM)), DIM),
        (scores.Shaw(_randn(4, DIM), _randn(HEADS, 4, 2), left=1, right=2), DIM),
    ],
    "TransformerXL": [
        (scores.TransformerXL(_randn(HEADS, DIM), _randn(HEADS, DIM), _randn(HEADS, DIM, 8)), DIM),
        (scores.TransformerXL(_randn(HEADS, DIM), _randn(HEADS, DIM), _randn(HEADS, DIM, 5), softcap=0.5), DIM),
    ],
}
ALL = {f"{name}-{n}": example for name, many in EXAMPLES.items() for n, example in enumerate(many)}


def _inputs(key_width, kv_heads=HEADS):
    return (
        _randn(BATCH, HEADS, QUERIES, DIM),
        _randn(BATCH, kv_heads, KEYS, key_width),
        _randn(BATCH, kv_heads, KEYS, 2),
    )


def _positions(start):
    return torch.arange(QUERIES) + start, torch.arange(KEYS)


def _classes():
    members = {name: getattr(scores, name) for name in scores.__all__}
    return {name: one for name, one in members.items() if inspect.isclass(one) and one is not scores.Score}


def test_every_exported_score_is_tested_here():
    assert set(_classes()) == set(EXAMPLES)
    assert all(issubclass(one, scores.Score) for one in _classes().values())
    for name, many in EXAMPLES.items():
        assert all(type(score) is _classes()[name] for score, _ in many)


def test_what_remains_after_preparing_gives_the_same():
    for case in sweep(itertools.product(ALL, [0, KEYS - QUERIES, 9], [HEADS, 2])):
        with case as (name, start, kv_heads):
            score, key_width = ALL[name]
            q, k, _ = _inputs(key_width, kv_heads)
            i, j = _positions(start)
            ready_q, ready_k, rest = score.prepare(q, k, start)
            assert ready_q.dtype == ready_k.dtype == q.dtype
            assert ready_k.shape[1] == kv_heads
            assert rest.softcap == score.softcap
            group = HEADS // kv_heads
            ours = rest.tile(ready_q, ready_k.repeat_interleave(group, 1), i, j)
            assert ours.shape == (BATCH, HEADS, QUERIES, KEYS)
            torch.testing.assert_close(ours, score.tile(q, k.repeat_interleave(group, 1), i, j), atol=1e-12, rtol=0)


def test_a_score_of_products_leaves_the_product():
    for case in sweep(ALL):
        with case as name:
            score, key_width = ALL[name]
            q, k, _ = _inputs(key_width)
            q, k, rest = score.prepare(q, k, 0)
            assert rest.product == score.product
            if score.product:
                torch.testing.assert_close(rest.tile(q, k, *_positions(0)), q @ k.transpose(-2, -1))


def test_preparing_again_changes_nothing():
    for case in sweep(ALL):
        with case as name:
            score, key_width = ALL[name]
            q, k, _ = _inputs(key_width)
            once_q, once_k, once = score.prepare(q, k, 3)
            twice_q, twice_k, twice = once.prepare(once_q, once_k, 3)
            torch.testing.assert_close(
                twice.tile(twice_q, twice_k, *_positions(3)), once.tile(once_q, once_k, *_positions(3))
            )


def test_the_tile_of_some_heads_rows_and_columns_is_that_part_of_the_whole():
    for case in sweep(itertools.product(ALL, [False, True], [slice(0, HEADS), slice(1, 3), slice(3, 4)])):
        with case as (name, prepared, heads):
            score, key_width = ALL[name]
            q, k, _ = _inputs(key_width)
            i, j = _positions(2)
            if prepared:
                q, k, score = score.prepare(q, k, 2)
            whole = score.tile(q, k, i, j)
            some = score.of_heads(heads)
            for rows in (slice(0, QUERIES), slice(2, 4), slice(4, 5)):
                for columns in (slice(0, KEYS), slice(3, 5), slice(6, 7)):
                    part = some.tile(q[:, heads, rows], k[:, heads, columns], i[rows], j[columns])
                    torch.testing.assert_close(part, whole[:, heads, rows, columns], atol=1e-12, rtol=0)


def test_the_terms_of_parts_add_up_to_that_of_the_whole():
    for case in sweep(itertools.product(ALL, [False, True], [slice(0, HEADS), slice(1, 3)])):
        with case as (name, prepared, heads):
            score, key_width = ALL[name]
            i, j = _positions(2)
            if prepared:
                score = score.prepare(*_inputs(key_width)[:2], 2)[2]
            weights = _randn(BATCH, HEADS, QUERIES, KEYS)
            whole = score.value_term(weights, i, j)
            if whole is None:
                assert getattr(score, "value_table", None) is None
                continue
            some = score.of_heads(heads)
            for rows in (slice(0, QUERIES), slice(2, 4), slice(4, 5)):
                parts = [
                    some.value_term(weights[:, heads, rows, columns], i[rows], j[columns])
                    for columns in (slice(0, 3), slice(3, 6), slice(6, 7))
                ]
                torch.testing.assert_close(sum(parts), whole[:, heads, rows], atol=1e-12, rtol=0)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_gradients_of_all_tensors_are_those_of_finite_differences(backend):
    for case in sweep(ALL):
        with case as name:
            score, key_width = ALL[name]
            q, k, v = _inputs(key_width, kv_heads=2)
            held = [one.clone() for one in tensors(score)]
            seen = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(0)) < 0.7
            seen[:, :, 1] = False
            seen[:, :, 0, 0] = True
            seen = seen[:1]

            def call(q, k, v, *held, score=score, seen=seen):
                new = unflatten(flatten(score)[1], held)
                return regard.attention(q, k, v, score=new, mask=seen, backend=backend)

            leaves = [one[:1].clone().requires_grad_() for one in (q, k, v)]
            learned = [one.requires_grad_() for one in held]
            assert torch.autograd.gradcheck(call, [*leaves, *learned], fast_mode=True)
            call(*leaves, *learned).square().sum().backward()
            for one in learned:
                assert one.grad.abs().max() > 0


def test_a_query_that_sees_nothing_gets_zero():
    for case in sweep(itertools.product(ALL, ["reference", "auto"])):
        with case as (name, backend):
            score, key_width = ALL[name]
            q, k, v = (x.requires_grad_() for x in _inputs(key_width))
            score = unflatten(flatten(score)[1], [one.clone().requires_grad_() for one in tensors(score)])
            rule = masks.MaskMod(lambda b, h, i, j: (i != KEYS - 1) & (j >= 0))
            out = regard.attention(q, k, v, score=score, mask=rule, backend=backend)
            assert (out[:, :, -1] == 0).all()
            assert (out[:, :, :-1] != 0).all()
            out[:, :, -1].sum().backward()
            for one in (q, k, v, *tensors(score)):
                assert one.grad is None or (one.grad == 0).all()


def test_narrow_types_are_near_the_wide():
    for case in sweep(itertools.product(ALL, ["reference", "auto"], [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])):
        with case as (name, backend, (dtype, tolerance)):
            score, key_width = ALL[name]
            narrow = [x.to(dtype) for x in _inputs(key_width, kv_heads=2)]
            out = regard.attention(*narrow, score=score, backend=backend)  # the tensors of the score stay float64
            assert out.dtype == dtype
            wide = regard.attention(*(x.double() for x in narrow), score=score, backend="reference")
            np.testing.assert_allclose(out.double().numpy(), wide.numpy(), atol=tolerance)


def test_the_fused_kernel_refuses_what_is_no_product():
    for case in sweep(ALL):
        with case as name:
            score, key_width = ALL[name]
            refusal = regard.backends.Sdpa().refuses(Problem.of(*_inputs(key_width), score=score))
            if score.product and score.softcap is None:
                assert refusal is None
            else:
                assert ("softcap" if score.product else f"not {type(score).__name__}") in refusal


def test_a_pair_needs_at_least_its_score():
    for case in sweep(ALL):
        with case as name:
            score, key_width = ALL[name]
            q, k, _ = _inputs(key_width)
            assert score.floats_per_pair >= score.prepare(q, k, 0)[2].floats_per_pair >= 1


def test_a_score_is_frozen_and_compares_by_identity_where_it_holds_tensors():
    for case in sweep(ALL):
        with case as name:
            score, _ = ALL[name]
            with pytest.raises(dataclasses.FrozenInstanceError):
                score.softcap = 1.0
            assert score == score
            if tensors(score):
                assert dataclasses.replace(score) != score


def test_every_score_shows_its_numbers_in_its_docstring():
    for case in sweep(sorted(EXAMPLES)):
        with case as name:
            one = _classes()[name]
            if name == "Dot":
                continue  # ScaledDot without its scale
            examples = doctest.DocTestFinder(recurse=False).find(one, name, globs={})[0].examples
            assert any("tile(" in example.source and "tensor(" in example.want for example in examples)
