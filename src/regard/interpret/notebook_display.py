"""Records show themselves in notebooks: `observe`, where they are made, lies below `render` and cannot know how."""

from regard.capture.records import Record
from regard.render.notebook_page import forwards_html, record_html

__all__ = ["forwards_html", "record_html"]

Record._repr_html_ = record_html  # type: ignore[attr-defined]
