"""What a user can get wrong. Each message says what, where, and what to do, in one line.

The command line prints the message and exits with 2; nothing else in the package prints or exits.
"""


class MtformerError(Exception):
    """A mistake that the user can mend; the message is one line: what, where, what to do."""


class ConfigError(MtformerError):
    """A config file or an override that does not fit the schema."""


class DataError(MtformerError):
    """A corpus that is missing, damaged, or does not fit the config."""


class CheckpointError(MtformerError):
    """A run directory or checkpoint that is missing, damaged, or does not fit the config."""


class LostProcessError(Exception):
    """Another process of a training that several share has ended; what was wrong is for that one to say."""


class DeviceError(MtformerError):
    """A device or precision that this machine does not have."""
