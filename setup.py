"""Put the folder configs, which stands beside the package in the repository, into the package of a wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Build the package with a copy of the configs; an editable installation uses those of the repository."""

    def run(self) -> None:
        """Build, and copy the configs."""
        super().run()
        if not self.editable_mode:
            shutil.copytree("configs", Path(self.build_lib, "mtformer", "configs"), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithConfigs})
