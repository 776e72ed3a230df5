"""The networks with SiLU: the same weights, another activation everywhere."""

import pytest
import torch
from torch import nn

from bilateral.errors import UserError
from bilateral.models import build_model, model_entry


@pytest.mark.parametrize("name", ["preact-resnet-18", "wrn-10-2"])
def test_the_activation_alone_differs(name):
    torch.manual_seed(0)
    plain = build_model(name, 10)
    torch.manual_seed(0)
    smooth = build_model(f"{name}-silu", 10)
    assert plain.state_dict().keys() == smooth.state_dict().keys()
    for one, other in zip(plain.parameters(), smooth.parameters(), strict=True):
        assert torch.equal(one, other)
    relu = [module for module in plain.modules() if isinstance(module, nn.ReLU)]
    silu = [module for module in smooth.modules() if isinstance(module, nn.SiLU)]
    assert len(relu) == len(silu) > 5
    assert not any(isinstance(module, nn.ReLU) for module in smooth.modules())
    images = torch.rand(2, 3, 16, 16)
    assert not torch.allclose(plain.eval()(images), smooth.eval()(images))


def test_any_wide_resnet_has_it_and_others_do_not():
    assert model_entry("wrn-16-4-silu").settings == {"depth": 16, "width": 4, "smooth": True}
    assert "SiLU" in model_entry("wrn-16-4-silu").summary
    with pytest.raises(UserError, match="unknown model 'small-cnn-silu'"):
        model_entry("small-cnn-silu")
