"""A Django application of the tests."""
