"""What the layer `GRU` takes where a setting is left out."""

from types import ModuleType
from typing import Any

import pytest

import reference


def shapes(framework: ModuleType, **given: Any) -> dict[str, tuple[int, ...]]:
    sizes = {"input_size": 6, "state_head_dim": 4, "output_size": 5, **given}
    return {name: x.shape for name, x in framework.layer_parameters("GRU", sizes, 0).items()}


def test_other_head_counts_are_those_of_the_input(framework: ModuleType) -> None:
    names = [f"num_{name}_heads" for name in ("forget_input", "reset_input", "weight", "forget_weight", "reset_weight")]
    written_out = {**dict.fromkeys(names, 3), "add_bias": True, "gradient_clipping": None}
    assert shapes(framework, num_input_heads=3) == shapes(framework, num_input_heads=3, **written_out)
    assert shapes(framework, num_input_heads=3, num_weight_heads=1)["state_weight"] == (1, 4, 4)
    for package in (reference, framework.package):
        assert package.GRU(64, 16, 64, 8).gradient_clipping is None
        assert package.sLSTM(64, 16, 64, 8).gradient_clipping is None
    assert framework.package.GRU(64, 16, 64, 8).num_reset_weight_heads == 8


def test_refusals(framework: ModuleType) -> None:
    for package in (reference, framework.package):
        with pytest.raises(TypeError, match=r"^GRU: `num_input_heads` is None; expected an"):
            package.GRU(6, 4, 5, None)
        with pytest.raises(ValueError, match=r"^GRU: `num_weight_heads` is 0; expected None or an integer"):
            package.GRU(6, 4, 5, 3, num_weight_heads=0)
        with pytest.raises(ValueError, match=r"^GRU: `num_weight_heads` is 2; expected Nw to divide N=3"):
            package.GRU(6, 4, 5, 3, num_weight_heads=2)
