"""Profiles of the fuzzers: --hypothesis-profile=deep takes minutes."""

from hypothesis import settings

settings.register_profile("deep", max_examples=10_000)
