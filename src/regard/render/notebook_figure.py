"""A figure that a notebook shows as it is, without matplotlib's magic."""

import io

from matplotlib import rc_context
from matplotlib.figure import Figure

__all__ = ["ShownFigure"]


class ShownFigure(Figure):
    """A matplotlib Figure with a picture of itself, which Jupyter asks for where `%matplotlib inline` is not on."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with rc_context({"text.usetex": False}):  # as it is when it is written to a file
            self.savefig(buffer, format="png", dpi=self.dpi)
        return buffer.getvalue()
