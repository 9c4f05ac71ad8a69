"""Read the scalars of TensorBoard's event files."""

import logging
import math
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.sources.content import check_size
from loptune.extras import require
from loptune.files import check_regular

PATTERN = "*tfevents*"


def read_events(place: Path) -> pd.DataFrame:
    """Return the scalars of an event file, or of all event files in a folder: a row per step, a
    column per tag.

    If a step was written twice, as by a resumed run, the last value is kept. A run without scalars,
    such as one that crashed at its start, has no rows.

    Raises:
        MissingError: tensorboard is not installed.
        ValueError: TensorBoard cannot read the files.
    """
    require("tensorboard", str(place))
    for path in place.glob(PATTERN) if place.is_dir() else (place,):
        check_regular(path)
        check_size(path)
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
    values: dict[str, dict[int, float]] = {}
    try:
        events.Reload()
    except Exception as error:  # its parsers may raise any exception for damaged files
        raise ValueError(f"TensorBoard cannot read its events: {error}") from None
    for tag in events.Tags()["scalars"]:
        values[tag] = {event.step: event.value for event in events.Scalars(tag)}
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name != "scalars":
            continue
        values[tag] = {
            event.step: float(tensor_util.make_ndarray(_scalar(event.tensor_proto, tag)).item())
            for event in events.Tensors(tag)
        }
    table = pd.DataFrame({tag: pd.Series(points) for tag, points in values.items()})
    return table.sort_index().rename_axis("step").reset_index()


def _scalar(tensor: Any, tag: str) -> Any:
    """Return the single value of a tensor. The shape is checked first, because it may claim far
    more memory than the file has bytes.

    Raises:
        ValueError: the tensor has several values.
    """
    size = math.prod(dimension.size for dimension in tensor.tensor_shape.dim)
    if size != 1:
        raise ValueError(f"the scalar {tag} is a tensor of {size} values")
    return tensor


def event_folders(root: Path) -> list[Path]:
    """Return the folders at and below ``root`` that contain event files."""
    return sorted({path.parent for path in root.rglob(PATTERN) if path.is_file()})
