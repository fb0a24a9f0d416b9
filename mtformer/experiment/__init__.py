"""The whole road of one experiment, from a config to a trained, averaged and scored run."""
