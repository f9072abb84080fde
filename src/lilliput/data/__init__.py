"""From text to batches of token ids: corpora, the storybook, tokenizers, token files, duplicates, word vectors, batches.

Does not own: the model. Imports no package of a later stage.
"""
