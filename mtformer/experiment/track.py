"""Send a run to a tracker after the fact."""

from mtformer.config.loading import load_config
from mtformer.config.schema import TrackerName
from mtformer.errors import ConfigError, DataError, MtformerError
from mtformer.experiment.run_state import read_state
from mtformer.run_dir import RunDir
from mtformer.training.follower import Follower, describe_error
from mtformer.training.trackers import require_tracker


def track(run: RunDir, name: TrackerName, again: bool = False) -> int:
    """Send the steps of a run that a tracker does not have yet, and return their number.

    Args:
        run: An opened run directory.
        name: The tracker.
        again: Send all steps to a new run in the tracker.

    Raises:
        ConfigError: If the package of the tracker is not installed, or the run is training and sends its own steps.
        DataError: If the run has no metrics.
        MtformerError: If the tracker fails.
    """
    require_tracker(name)
    config = load_config(run.config).config
    if name in config.training.trackers and read_state(run).state == "running":
        raise ConfigError(f"{run.path}: is training, and sends its own steps to {name}; wait until it has ended")
    if not run.metrics.is_file():
        raise DataError(f"{run.path}: has no {run.metrics.name}, so there is nothing to send; give a run directory")

    follower = Follower(name, run, config)
    try:
        follower.open(again)
        follower.send(with_last=True)
        follower.close()
    except MtformerError:
        raise
    except Exception as error:  # those of the package of the tracker
        raise MtformerError(
            f"{run.path}: {name} failed after {follower.num_sent} steps ({describe_error(error)}); fix the cause and "
            "repeat the command, which sends the rest"
        ) from error
    return follower.num_sent
