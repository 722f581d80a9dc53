"""The passes over rows of logits that `sampling.cpp` makes for the sampler."""

import ctypes

import numpy as np
import numpy.typing as npt

from slipstream.kernels.cpu.loader import NativeLibrary

_Logits = npt.NDArray[np.float32]
_TokenIds = npt.NDArray[np.int64]

_MAX_NUM_CONTENDERS = 64  # as in contenders.h


class SamplingKernels:
    """
    Calls them on rows that the caller has checked: no NaN but for `find_peaks`.

    Every level gives the same, up to the rounding of `total_weight`. Raises
    NativeUnavailableError when the library is older than these functions.
    """

    def __init__(self, library: NativeLibrary) -> None:
        pointer, size, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        word, single = ctypes.c_uint64, ctypes.c_float
        self._find_peaks = library.function(
            "slipstream_find_peaks", None, pointer, size, size, pointer, pointer
        )
        self._find_largest = library.function(
            "slipstream_find_largest", ctypes.c_int, pointer, size, size, pointer
        )
        self._total_weight = library.function(
            "slipstream_total_weight", real, pointer, size, real, real
        )
        self._find_nucleus = library.function(
            *("slipstream_find_nucleus", ctypes.c_int, pointer, size, real, real, real, real),
            ctypes.POINTER(size),
        )
        self._find_contenders = library.function(
            *("slipstream_find_contenders", size, pointer, size, size, real, word, word),
            *(single, size, pointer),
        )

    def find_peaks(self, rows: _Logits) -> list[tuple[int, float]]:
        """Return the id and the value of each row's largest logit, as `argmax` has them."""
        rows = _readable(rows)
        num_rows, size = rows.shape
        # For few rows these cost half of what arrays of numpy do.
        token_ids, logits = (ctypes.c_int64 * num_rows)(), (ctypes.c_float * num_rows)()
        self._find_peaks(
            rows.ctypes.data,
            num_rows,
            size,
            ctypes.addressof(token_ids),
            ctypes.addressof(logits),
        )
        return list(zip(token_ids, logits, strict=True))

    def find_largest(self, row: _Logits, num_largest: int) -> _TokenIds:
        """Return the ids of the largest, largest first, on a tie the lowest. Raises MemoryError."""
        assert 0 < num_largest <= len(row), f"the {num_largest} largest of {len(row)}"
        row = _readable(row)
        token_ids = np.empty(num_largest, np.int64)
        if self._find_largest(row.ctypes.data, len(row), num_largest, token_ids.ctypes.data) != 0:
            raise MemoryError(f"no memory to rank {len(row)} logits")
        return token_ids

    def total_weight(self, row: _Logits, maximum: float, temperature: float) -> float:
        """Return the sum of e^((logit - maximum) / temperature)."""
        row = _readable(row)
        total: float = self._total_weight(row.ctypes.data, len(row), maximum, temperature)
        return total

    def find_nucleus(
        self, row: _Logits, maximum: float, temperature: float, top_p: float, error: float
    ) -> int | None:
        """
        Return the id of the last of the largest logits whose weights reach top_p of all.

        None where sums that differ by `error`, relative, could say otherwise.
        """
        row = _readable(row)
        token_id = ctypes.c_int64()
        is_open = self._find_nucleus(
            row.ctypes.data, len(row), maximum, temperature, top_p, error, token_id
        )
        return None if is_open else token_id.value

    def find_contenders(
        self,
        row: _Logits,
        peak_token_id: int,
        temperature: float,
        seed: int,
        output_position: int,
        floor: tuple[float, int],
    ) -> _TokenIds | None:
        """
        Return, ascending, every id whose logit / temperature + noise may be the largest.

        The floor is logit and id of the last that counts, on a tie the highest id. None when too
        many are as good as each other. The largest logit, by itself and by the temperature, is at
        most 2^20 in size, and so are the temperature and its inverse.
        """
        row = _readable(row)
        token_ids = np.empty(_MAX_NUM_CONTENDERS, np.int64)
        count: int = self._find_contenders(
            *(row.ctypes.data, len(row), peak_token_id, temperature),
            *(seed, output_position, *floor, token_ids.ctypes.data),
        )
        return token_ids[:count] if count >= 0 else None


def _readable(logits: _Logits) -> _Logits:
    assert logits.dtype == np.float32, f"logits in {logits.dtype}"
    return np.ascontiguousarray(logits)
