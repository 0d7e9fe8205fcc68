"""`regard.watch(on_layer_end=)`: each layer is given when it is finished, which some questions and models exclude."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from regard.errors import InputError, ObservationError
from regard.observe.statistics import Rollout
from sweeps import sweep


class Layer(nn.Module):
    def forward(self, x):
        functional.scaled_dot_product_attention(x, x, x)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Layer() for _ in range(3)])

    def forward(self):
        for number, block in enumerate(self.blocks):
            block(torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(number)))


def test_layers_are_given_in_order_and_what_is_returned_takes_their_place():
    given = []

    def replace(number, layer):
        given.append((number, layer.name))
        return dataclasses.replace(layer, name=f"no {number}") if number == 1 else None

    with regard.watch(model := Stack(), on_layer_end=replace) as seen:
        model()
    assert given == [(number, f"blocks.{number}") for number in range(3)]
    assert [layer.name for layer in seen.layers] == ["blocks.0", "no 1", "blocks.2"]


def test_what_needs_all_layers_is_refused_where_each_is_finished_as_it_comes():
    for case in sweep([Rollout(key=1), Rollout(query=-1), "gradient_x_attention", "importance"]):
        with case as statistic:
            name = statistic if isinstance(statistic, str) else "rollout"
            with (
                pytest.raises(InputError, match=rf"the statistic '{name}' needs all layers, or a backward pass"),
                regard.watch(Stack(), statistics=[statistic], on_layer_end=print),
            ):
                pass


def test_a_second_pass_is_refused():
    model = Stack()
    with regard.watch(model, on_layer_end=lambda number, layer: None):
        model()
        with pytest.raises(ObservationError, match=r"blocks\.0 was called twice, and layers that are taken"):
            model()
