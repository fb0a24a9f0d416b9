"""mtformer: train, run and evaluate Transformer translation models from the command line.

From Python: `mtformer.Translator.load("runs/en_de").translate(["A dog runs."])`; docs/python.md has more examples.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mtformer.errors import MtformerError as MtformerError

if TYPE_CHECKING:
    from mtformer.decoding.translation import Attention as Attention
    from mtformer.decoding.translation import Scored as Scored
    from mtformer.decoding.translation import Translation as Translation
    from mtformer.decoding.translator import Translator as Translator

__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `mtformer --help` does not wait for torch."""
    if name not in ("Translator", "Translation", "Scored", "Attention"):
        raise AttributeError(f"module 'mtformer' has no attribute '{name}'")
    module = "translator" if name == "Translator" else "translation"
    return getattr(import_module(f"mtformer.decoding.{module}"), name)
