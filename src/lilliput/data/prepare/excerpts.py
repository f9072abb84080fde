"""The beginning of the training split: its text as read, and its ids as the model reads them.

Does not own: reading documents (`corpora`) or token files (`token_files`).
"""

from __future__ import annotations

from lilliput.data.corpora import END_OF_TEXT, Corpus
from lilliput.data.duplicates import hash_text
from lilliput.data.prepare.token_files import Prepared

SEPARATOR = f"\n{END_OF_TEXT}\n"


def first_text(corpus: Corpus, prepared: Prepared, count: int) -> str:
    """Return the first `count` characters of the training documents, which lines with <|endoftext|> separate.

    Only the documents that contain these characters are read, and those before them.
    """
    # The source also has the documents that data.drop_duplicates dropped; the hashes are those of the others, in order.
    kept, size, texts = prepared.hashes("train"), -len(SEPARATOR), list[str]()
    for document in corpus.documents("train"):
        if size >= count or len(texts) == len(kept):
            break
        if hash_text(document.text.encode()) == kept[len(texts)].tobytes():
            texts.append(document.text)
            size += len(document.text) + len(SEPARATOR)
    return SEPARATOR.join(texts)[:count]


def first_ids(prepared: Prepared, count: int) -> list[int]:
    """Return the first `count` ids of the training split. The end token follows each document."""
    file = prepared.split("train")
    start = int(file.offsets[0])  # after the end token that separates the first document from nothing
    ids: list[int] = file.tokens[start : start + count].tolist()
    return ids
