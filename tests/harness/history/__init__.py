"""Histories of operations and their checker."""
