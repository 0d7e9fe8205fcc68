"""Arrays as .npy and .npz, without pickles, and with equal bytes for equal numbers."""

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["npy", "npz"]

_EPOCH = (1980, 1, 1, 0, 0, 0)


def npy(array: npt.NDArray[Any]) -> bytes:
    """Return one array as .npy."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def npz(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return several arrays by name as a compressed .npz; np.load loads it with allow_pickle=False, its default."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), npy(array), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
