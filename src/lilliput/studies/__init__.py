"""Studies: compare settings over several seeds at an equal budget, measure and report."""
