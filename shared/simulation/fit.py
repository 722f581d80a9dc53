"""Costs from what was measured: least squares without negative weights."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from slipstream.shared.errors import SlipstreamError
from slipstream.shared.simulation.costs import StepTimes
from slipstream.shared.worker.step_cost import num_pairs

_MAX_NUM_FEATURES = 6  # all their subsets are tried
# A further feature must leave so little of the error: else it explains noise, and is wrong beyond
# what was measured.
_WORTH = 0.95


class FitError(SlipstreamError):
    """What was measured does not tell what is asked."""

    code = "fit_failed"


class _Fit(NamedTuple):
    error: float
    weights: npt.NDArray[np.float64]


class Sample(NamedTuple):
    """Seconds of something that has so much of each feature."""

    features: tuple[float, ...]
    seconds: float


def fit(samples: Sequence[Sample]) -> tuple[float, ...]:
    """
    Return the seconds of a unit of each feature, none below 0, with the least relative errors.

    Of few features the best is found by trying which of them are to be 0, and one that explains
    next to nothing is. Raises FitError.
    """
    if not samples:
        raise FitError("there is nothing to fit costs to")
    num_features = len(samples[0].features)
    assert num_features <= _MAX_NUM_FEATURES, f"{num_features} features"
    seconds = np.array([each.seconds for each in samples])
    if seconds.min() <= 0:
        raise FitError(f"a sample took {seconds.min():g} s: times must be above 0")
    scaled = np.array([each.features for each in samples]) / seconds[:, None]
    best: _Fit | None = None
    for size in range(1, num_features + 1):
        found = [
            each
            for kept in itertools.combinations(range(num_features), size)
            if (each := _fit_kept(scaled, kept)) is not None
        ]
        best_of_size = min(found, key=lambda each: each.error, default=None)
        if best_of_size and (best is None or best_of_size.error < _WORTH * best.error):
            best = best_of_size
    if best is None:
        raise FitError("no costs explain what was measured")
    return tuple(float(each) for each in best.weights)


def _fit_kept(scaled: npt.NDArray[np.float64], kept: tuple[int, ...]) -> _Fit | None:
    """Return the fit in which only some features cost anything."""
    weights = _solve(scaled[:, kept])
    if weights is None:
        return None
    whole = np.zeros(scaled.shape[1])
    whole[list(kept)] = weights
    return _Fit(float(np.square(scaled @ whole - 1).sum()), whole)


def _solve(scaled: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """Return the weights that bring all rows closest to 1; None where one is below 0."""
    sizes = np.abs(scaled).max(axis=0)
    if not sizes.all():
        return None
    weights, _, rank, _ = np.linalg.lstsq(scaled / sizes, np.ones(len(scaled)), rcond=1e-9)
    if rank < scaled.shape[1] or weights.min() < 0:
        return None
    return np.asarray(weights / sizes)


def fit_cells(cells: Iterable[Mapping[str, Any]]) -> StepTimes:
    """
    Return the costs that cells of `slipstream bench engine --json` show. Any: text and numbers.

    Steps of one sequence tell of prompts, too, whatever their rows are. Raises FitError.
    """
    streams, prompts = [], []
    for cell in cells:
        batch, context, num_rows = (int(cell[name]) for name in ("batch", "context", "num_rows"))
        seconds = float(cell["step_ms"]) / 1000
        if cell["phase"] == "decode":
            streams.append(Sample((1, batch, batch * (context + 1)), seconds))
        if batch == 1:
            prompts.append(Sample((1, num_rows, num_pairs(context, num_rows)), seconds))
    if len(streams) < 3 or len(prompts) < 3:  # noqa: PLR2004 - as many as there are unknown costs
        raise FitError(
            f"there are {len(streams)} steps of streams and {len(prompts)} of prompts: "
            "at least 3 of each are needed"
        )
    return StepTimes.fitted(fit(streams), fit(prompts))
