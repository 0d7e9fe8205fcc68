"""A figure that notebooks display without matplotlib's magic."""

import io

from matplotlib import rc_context
from matplotlib.figure import Figure

__all__ = ["ShownFigure"]


class ShownFigure(Figure):
    """A matplotlib Figure with its own PNG, which Jupyter displays without `%matplotlib inline`."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with rc_context({"text.usetex": False}):  # the same as when saved to a file
            self.savefig(buffer, format="png", dpi=self.dpi)
        return buffer.getvalue()
