"""Display records in notebooks. This is done here because `capture`, which makes records, must not import `render`."""

from regard.capture.records import Record
from regard.render.notebook import forwards_html, record_html

__all__ = ["forwards_html", "record_html"]

Record._repr_html_ = record_html  # type: ignore[attr-defined]
