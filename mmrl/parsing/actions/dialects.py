"""All dialects of actions, by name."""

from collections.abc import Mapping
from typing import Literal

from mmrl.parsing.actions import agentcpm, gui_r1, plain, pyautogui, qwen, ui_r1, ui_tars
from mmrl.parsing.actions.dialect import Dialect

DialectName = Literal["agentcpm", "gui_r1", "plain", "pyautogui", "qwen", "ui_r1", "ui_tars"]
DIALECTS: Mapping[DialectName, Dialect] = {
    "agentcpm": agentcpm.DIALECT,
    "gui_r1": gui_r1.DIALECT,
    "plain": plain.DIALECT,
    "pyautogui": pyautogui.DIALECT,
    "qwen": qwen.DIALECT,
    "ui_r1": ui_r1.DIALECT,
    "ui_tars": ui_tars.DIALECT,
}
