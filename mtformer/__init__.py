"""mtformer: train, run and evaluate Transformer translation models from the command line.

From Python: `mtformer.Translator.load("runs/en_de").translate(["A dog runs."])`; docs/python.md has more examples.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mtformer.errors import MtformerError as MtformerError
from mtformer.version import __version__ as __version__

if TYPE_CHECKING:
    from mtformer.decoding.lines.translation import Attention as Attention
    from mtformer.decoding.lines.translation import Scored as Scored
    from mtformer.decoding.lines.translation import Translation as Translation
    from mtformer.decoding.translator import Translator as Translator


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `mtformer --help` does not wait for torch."""
    if name not in ("Translator", "Translation", "Scored", "Attention"):
        raise AttributeError(f"module 'mtformer' has no attribute '{name}'")
    module = "translator" if name == "Translator" else "lines.translation"
    return getattr(import_module(f"mtformer.decoding.{module}"), name)
