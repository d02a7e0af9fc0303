"""Videos inside of a page: small ones play there, of others the strip of frames is shown."""

from base64 import b64encode
from html import escape
from pathlib import Path

LARGEST_VIDEO = 2**20  # bytes of one video that is put into a page
LARGEST_SUM = 24 * 2**20  # bytes of all videos of a page


class Players:
    """Writes the videos of one page, as long as there is room."""

    def __init__(self, room: int = LARGEST_SUM) -> None:
        """`room`: bytes of all videos of the page."""
        self._room = room

    def player(self, file: Path, label: str, *, is_tiny: bool) -> str:
        """Returns the element that plays a video; where it is too large or missing, a sentence in its place."""
        try:
            size = file.stat().st_size
            if size > min(LARGEST_VIDEO, self._room):
                return f'<p class="missing note">not in this page, as it is large: {escape(file.name)}</p>'
            content = file.read_bytes()
        except OSError:
            return '<div class="missing">no video</div>'
        self._room -= size
        crisp = ' class="crisp"' if is_tiny else ""
        uri = f"data:video/mp4;base64,{b64encode(content).decode()}"
        return f'<video{crisp} controls loop muted playsinline aria-label="{escape(label)}" src="{uri}"></video>'
