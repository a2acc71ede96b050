"""Configuration: setting keys, properties files, validation of values."""
