"""What a GUI agent can do, and the dialects in which models write it."""

from collections.abc import Mapping
from typing import Literal

from mmrl._actions import plain, pyautogui, qwen, ui_tars
from mmrl._actions.action import CLICKS, Action, Direction, Kind
from mmrl._actions.dialect import Dialect

__all__ = ["CLICKS", "DIALECTS", "Action", "Dialect", "DialectName", "Direction", "Kind"]

DialectName = Literal["plain", "pyautogui", "qwen", "ui_tars"]
DIALECTS: Mapping[DialectName, Dialect] = {
    "plain": plain.DIALECT,
    "pyautogui": pyautogui.DIALECT,
    "qwen": qwen.DIALECT,
    "ui_tars": ui_tars.DIALECT,
}
