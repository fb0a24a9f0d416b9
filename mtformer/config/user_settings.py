"""The user's own settings, in ~/.config/mtformer/settings.yaml.

They have the commands of metrics, which must never come from a run, a bundle or a model from the Hub: nothing that is
loaded may execute code. Therefore, no config has a key for them.
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mtformer.config.loading import read_tree
from mtformer.config.section import Section
from mtformer.config.validation import validated
from mtformer.files import expand_user


class UserSettings(Section):
    """Settings of a user."""

    metrics: dict[Annotated[str, Field(min_length=1)], str] = {}
    """Command of each metric by name, see `evaluation.external`."""


def settings_file() -> Path:
    """Return the path of the settings file, which may not exist."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # relative paths are ignored, as the XDG specification requires
        folder = "~/.config"
    return expand_user(Path(folder, "mtformer", "settings.yaml"))


def read_user_settings() -> UserSettings:
    """Return the user's settings; raise ConfigError if the file is invalid."""
    path = settings_file()
    if not path.exists():
        return UserSettings()
    values, origins = read_tree(str(path), "settings")
    return validated({} if values is None else values, origins, UserSettings)
