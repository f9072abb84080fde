"""Every setting: the typed tree, loading from recipes and flags, cross-field rules, choices by name."""
