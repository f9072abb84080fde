"""What counting words knows of a label: TF-IDF of words and word pairs, and a logistic regression on them.

Owns: the linear classifier of texts, whose only free setting, its strength, is chosen by cross-validation within training. Does
not own: accuracy and the names of the rows (`baselines`), or the documents.

Words are as scikit-learn has them by default: lower case, two characters or more. scikit-learn is imported only here, when it
is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lilliput.errors import UserError

STRENGTHS = (10.0, 1.0, 100.0)  # of the fit: scikit-learn's C, the inverse of the penalty; the usual one first
FOLDS = 5


def commonest(labels: Sequence[str]) -> str:
    """Of several, the first of the alphabet."""
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))


def tell_by_words(
    texts: Sequence[str], labels: Sequence[str], judged: Sequence[str], strengths: Sequence[float] = STRENGTHS
) -> list[str] | None:
    """The label of each judged text; None where training has one label only, or no word to tell labels by."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
        from sklearn.model_selection import GridSearchCV, StratifiedKFold  # type: ignore[import-untyped]
        from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    except ImportError as error:
        what = "the linear baseline of labels needs scikit-learn, which is not installed"
        raise UserError(what, None, 'pip install "lilliput[baselines]"') from error

    words = TfidfVectorizer(ngram_range=(1, 2))
    analyse = words.build_analyzer()
    if len(set(labels)) < 2 or not any(analyse(text) for text in texts):
        return None
    linear = make_pipeline(words, LogisticRegression(C=strengths[0], max_iter=5000))
    folds = min(FOLDS, *Counter(labels).values())
    if folds > 1 and len(strengths) > 1:  # a label that has one text only cannot be in both parts
        parts = StratifiedKFold(folds, shuffle=True, random_state=0)
        linear = GridSearchCV(linear, {"logisticregression__C": list(strengths)}, cv=parts)
    linear.fit(texts, labels)
    return [str(label) for label in linear.predict(judged)]
