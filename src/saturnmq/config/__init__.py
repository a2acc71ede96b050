"""Configuration: keys, properties files, environment, `--set`, validation."""
