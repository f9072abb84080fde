"""The public Python API: runs and results as objects, with progress and tables for terminals and notebooks."""
