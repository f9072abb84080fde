"""Text in, integers out: corpora, the built-in storybook, tokenizers, prepared token files,
duplicates, word vectors, batches.


Owns everything between a user's text and the ids that a model sees. Does not own the model; no later room is
imported.
"""
