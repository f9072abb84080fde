"""Linear classifiers of words: logistic regression on TF-IDF, and naive Bayes, both on words and word bigrams.

Owns: the two text classifiers. Their only free setting (regularisation or smoothing) is chosen by cross-validation
within training. Does not own: accuracy and the names of the rows (`baselines`), or the documents.

Words are in lower case. TF-IDF uses scikit-learn's default words of at least two characters. Naive Bayes also counts
single characters and punctuation, in which speakers differ too. scikit-learn is imported only on use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lilliput.errors import UserError

STRENGTHS = (10.0, 1.0, 100.0)  # scikit-learn's C, the inverse of the penalty; the default first
SMOOTHINGS = (0.3, 0.1, 1.0)  # added to every count: scikit-learn's alpha
FOLDS = 5
WORDS_AND_PUNCTUATION = r"(?u)\w+|[^\w\s]"


def most_common_label(labels: Sequence[str]) -> str:
    """Return the most frequent label; of equally frequent ones, the alphabetically first."""
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))


def predict_by_tfidf(
    texts: Sequence[str], labels: Sequence[str], test_texts: Sequence[str], strengths: Sequence[float] = STRENGTHS
) -> list[str] | None:
    """Return the label of each test text; None if training has only one label, or no words."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    except ImportError as error:
        raise missing_scikit_learn() from error
    return fit_and_predict(
        TfidfVectorizer(ngram_range=(1, 2)),
        LogisticRegression(max_iter=5000),
        "C",
        strengths,
        texts,
        labels,
        test_texts,
    )


def predict_by_naive_bayes(
    texts: Sequence[str], labels: Sequence[str], test_texts: Sequence[str], smoothings: Sequence[float] = SMOOTHINGS
) -> list[str] | None:
    """Return the same by multinomial naive Bayes with equal prior probabilities of all labels."""
    try:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.naive_bayes import MultinomialNB  # type: ignore[import-untyped]
    except ImportError as error:
        raise missing_scikit_learn() from error
    words = CountVectorizer(ngram_range=(1, 2), token_pattern=WORDS_AND_PUNCTUATION)
    return fit_and_predict(words, MultinomialNB(fit_prior=False), "alpha", smoothings, texts, labels, test_texts)


def fit_and_predict(
    words: Any,
    classifier: Any,
    setting: str,
    values: Sequence[float],
    texts: Sequence[str],
    labels: Sequence[str],
    test_texts: Sequence[str],
) -> list[str] | None:
    """Use the value of the setting that is best in cross-validation, or the first if there are too few texts."""
    try:
        from sklearn.model_selection import GridSearchCV, StratifiedKFold  # type: ignore[import-untyped]
        from sklearn.pipeline import Pipeline  # type: ignore[import-untyped]
    except ImportError as error:
        raise missing_scikit_learn() from error
    analyse = words.build_analyzer()
    if len(set(labels)) < 2 or not any(analyse(text) for text in texts):
        return None
    model = Pipeline([("words", words), ("classifier", classifier.set_params(**{setting: values[0]}))])
    folds = min(FOLDS, *Counter(labels).values())
    if folds > 1 and len(values) > 1:  # a label with one text cannot be in both parts
        parts = StratifiedKFold(folds, shuffle=True, random_state=0)
        model = GridSearchCV(model, {f"classifier__{setting}": list(values)}, cv=parts)
    model.fit(texts, labels)
    return [str(label) for label in model.predict(test_texts)]


def missing_scikit_learn() -> UserError:
    what = "label baselines require scikit-learn, which is not installed"
    return UserError(what, fix='run pip install "lilliput[baselines]"', code="package.missing")
