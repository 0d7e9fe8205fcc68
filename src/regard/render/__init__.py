"""Pictures of a record: in the terminal, as figures, as one HTML page. Drawn from records, never from tensors."""

from regard.render.figure import focus_figure, heads_figure, heatmap_figure, save_figure
from regard.render.page import write_page
from regard.render.terminal import picture

__all__ = ["focus_figure", "heads_figure", "heatmap_figure", "picture", "save_figure", "write_page"]
