"""Shared helpers of the tests: small runs, models, corpora and files."""
