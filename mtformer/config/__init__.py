"""Load YAML files, `extends` and overrides into one typed, validated `Config`."""
