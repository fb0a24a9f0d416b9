"""The experiment: YAML, `extends` and overrides made into one typed, validated `Config`."""
