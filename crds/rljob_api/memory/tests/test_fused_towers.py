"""How large OpenVLA is to a plan."""

from rljob_api.memory.fused_towers import FusedTowers, TowerShape
from rljob_api.memory.model_shape import parse_shape

# config.json as it is published says little of the Llama
OPENVLA = {"model_type": "openvla", "text_config": {"model_type": "llama", "vocab_size": 32064}}


def test_openvla_as_published() -> None:
    shape = parse_shape(OPENVLA)
    assert shape is not None and shape.vision is not None
    # a Llama 2 of 7 B with 64 words more: 32 layers of 202,383,360, two embeddings of 131,334,144, a norm of 4,096
    assert shape.parameters == 6_738_939_904
    # the last layers of both towers, which published files have and nothing is computed with, are not among them
    assert (shape.vision.parameters, shape.keeps_keys) == (759_216_800, True)
    oft = parse_shape(OPENVLA | {"model_type": "openvla_oft"})
    assert oft is not None and not oft.keeps_keys


def test_pictures_take_what_one_tower_computes_and_all_of_what_is_trained() -> None:
    towers = FusedTowers((TowerShape(2, 3, 1, 4, patch=2), TowerShape(3, 2, 1, 5, patch=2)), (4, 4), output=6)
    # of 10 tokens: pixels 2 x 10 x 12 x 4, and 10 x 4 x 6 that the decoder reads; projector 10 x 4 x (45 + 6)
    assert towers.kept_bytes(10, 4, trained=False) == 960 + 240
    assert towers.working_bytes(10, 4) == 960 + 2040
    # two layers of 9 x 2 + 2 x 4 elements, and one of 9 x 3 + 2 x 5
    assert towers.kept_bytes(10, 4, trained=True) == 1200 + 10 * 4 * (2 * 26 + 37) + 2040
    assert towers.kept_bytes(10, 4, trained=True, recompute=True) == 1200 + 10 * 4 * (2 * 2 + 3) + 2040
