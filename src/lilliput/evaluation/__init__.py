"""A model that is judged: likelihood, labels, overlap with documents, whole texts, and what needs no net beside
them."""
