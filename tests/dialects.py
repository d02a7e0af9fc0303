"""The dialects of actions, and screens that their texts are about."""

from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.dialects import DIALECTS, DialectName
from mmrl.parsing.coordinates import Canvas

NAMES: list[DialectName] = sorted(DIALECTS)
SCREEN = Canvas((1920, 1080), (1932, 1092), "resized")
THOUSAND = Canvas((1920, 1080), (1000, 500), "thousand")  # (500, 250) of the model is (960, 270)
AT = (960.0, 270.0)


def parse(name: DialectName, text: str) -> Action:
    return DIALECTS[name].parse(text, THOUSAND)
