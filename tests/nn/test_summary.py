"""The table of a model, exactly."""

import pytest
import torch
from torch import nn

import regard
from regard.errors import InputError
from regard.nn import EncoderBlock, tutorials

TABLE = """\
module          kind                parameters of its own   output      parameters
EncoderBlock    EncoderBlock                                2 × 5 × 8          872
  norms         ModuleList                                                      32
    0           LayerNorm           weight 8, bias 8        2 × 5 × 8           16
    1           LayerNorm           weight 8, bias 8        2 × 5 × 8           16
  attention     MultiHeadAttention                          2 × 5 × 8          288
    q_proj      Linear              weight 8 × 8, bias 8    2 × 5 × 8           72
    k_proj      Linear              weight 8 × 8, bias 8    2 × 5 × 8           72
    v_proj      Linear              weight 8 × 8, bias 8    2 × 5 × 8           72
    out_proj    Linear              weight 8 × 8, bias 8    2 × 5 × 8           72
  feed_forward  FeedForward                                 2 × 5 × 8          552
    up_proj     Linear              weight 32 × 8, bias 32  2 × 5 × 32         288
    down_proj   Linear              weight 8 × 32, bias 8   2 × 5 × 8          264
872 parameters, 872 of them trainable"""


def test_the_table_of_a_block():
    torch.manual_seed(0)
    block = EncoderBlock(8, 2, 32, dropout=0.5)
    block.attention.eval()
    assert str(regard.summary(block, torch.zeros(2, 5, 8))) == TABLE
    assert (block.training, block.attention.training, block.feed_forward.training) == (True, False, True)
    assert not any(module._forward_hooks for module in block.modules())


def test_shared_parameters_count_once_and_frozen_ones_are_told():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    found = regard.summary(model, depth=0)
    assert (found.parameters, found.trainable) == (15, 12)
    assert str(found) == (
        "module      kind        parameters of its own  parameters\n"
        "Sequential  Sequential                                 15\n"
        "15 parameters, 12 of them trainable"
    )


def test_depth_hides_what_lies_deeper():
    model = tutorials.TransformerEncoder(1000, 128, 4, 512, num_layers=2)
    rows = regard.summary(model, depth=1).rows
    assert [(row.name, row.parameters) for row in rows] == [
        ("TransformerEncoder", 523_776),
        ("embedding", 128_000),
        ("pos_encoding", 0),
        ("layers", 395_520),
        ("norm", 256),
    ]


def test_outputs_of_several_tensors_and_a_number_are_named():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return x * self.scale, [x.sum(), None]

    (row,) = regard.summary(Two(), torch.zeros(2, 3)).rows
    assert (row.shapes, row.output) == ((("scale", ()),), "2 × 3, one number")
    assert "scale one number" in str(regard.summary(Two()))


def test_only_a_module_has_a_summary():
    with pytest.raises(InputError, match=r"`model` must be an nn\.Module, got dict"):
        regard.summary({})


def test_modes_and_hooks_are_restored_when_the_model_fails():
    model = nn.Linear(3, 3)
    with pytest.raises(RuntimeError):
        regard.summary(model, torch.zeros(2, 4))
    assert model.training
    assert not model._forward_hooks
