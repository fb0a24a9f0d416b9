"""mtformer: train, run and measure Transformer translation models from the command line.

From Python: `mtformer.Translator.load("runs/en_de").translate(["A dog runs."])`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtformer.decoding.translator import Translator as Translator

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Imports torch late, so that `mtformer --help` is instant."""
    if name == "Translator":
        from mtformer.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module 'mtformer' has no attribute '{name}'")
