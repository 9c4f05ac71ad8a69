"""Files of the user that have the names of our packages."""

import importlib.util
from pathlib import Path

from rewards.own import OWN_PACKAGES
from trainer.errors import ConfigError


def check_folder(folder: Path) -> None:
    """Refuse to start processes in a folder where they would import the user's files instead of ours.

    Raises:
        ConfigError: names the first such file or folder.
    """
    for name in OWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        ours = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if path.is_file() and path.parent.resolve() != ours:
                place = path if path.name != "__init__.py" else path.parent
                raise ConfigError(
                    f"{place.name} would be imported instead of loptune's package {name}",
                    str(place),
                    "rename it, or start from another folder",
                )
