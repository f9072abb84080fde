"""What counting words knows of a label: logistic regression on TF-IDF, and naive Bayes, each of words and word pairs.

Owns: the two classifiers of texts, whose only free setting (the strength of the fit, or what is added to
counts) is chosen by cross-validation within training. Does not own: accuracy and the names of the rows
(`baselines`), or the documents.

Words are in lower case. For TF-IDF they are as scikit-learn has them by default, two characters or more;
naive Bayes also counts single characters and marks, by which speakers differ, too. scikit-learn is imported
only here, when it is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lilliput.errors import UserError

STRENGTHS = (10.0, 1.0, 100.0)  # of the fit: scikit-learn's C, the inverse of the penalty; the usual one first
SMOOTHINGS = (0.3, 0.1, 1.0)  # added to every count: scikit-learn's alpha
FOLDS = 5
WORDS_AND_MARKS = r"(?u)\w+|[^\w\s]"


def commonest(labels: Sequence[str]) -> str:
    """Of several, the first of the alphabet."""
    counts = Counter(labels)
    return min(counts, key=lambda label: (-counts[label], label))


def predict_by_tfidf(
    texts: Sequence[str], labels: Sequence[str], test_texts: Sequence[str], strengths: Sequence[float] = STRENGTHS
) -> list[str] | None:
    """The label of each judged text; None where training has one label only, or no word to tell labels by."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    except ImportError as error:
        raise without_scikit_learn() from error
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
    """The same by multinomial naive Bayes, to which no label is likelier than another before it reads."""
    try:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.naive_bayes import MultinomialNB  # type: ignore[import-untyped]
    except ImportError as error:
        raise without_scikit_learn() from error
    words = CountVectorizer(ngram_range=(1, 2), token_pattern=WORDS_AND_MARKS)
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
    """By the value of the setting that is best in folds of training; by the first where there are none."""
    try:
        from sklearn.model_selection import GridSearchCV, StratifiedKFold  # type: ignore[import-untyped]
        from sklearn.pipeline import Pipeline  # type: ignore[import-untyped]
    except ImportError as error:
        raise without_scikit_learn() from error
    analyse = words.build_analyzer()
    if len(set(labels)) < 2 or not any(analyse(text) for text in texts):
        return None
    model = Pipeline([("words", words), ("classifier", classifier.set_params(**{setting: values[0]}))])
    folds = min(FOLDS, *Counter(labels).values())
    if folds > 1 and len(values) > 1:  # a label that has one text only cannot be in both parts
        parts = StratifiedKFold(folds, shuffle=True, random_state=0)
        model = GridSearchCV(model, {f"classifier__{setting}": list(values)}, cv=parts)
    model.fit(texts, labels)
    return [str(label) for label in model.predict(test_texts)]


def without_scikit_learn() -> UserError:
    what = "the baselines of labels need scikit-learn, which is not installed"
    return UserError(what, fix='pip install "lilliput[baselines]"', code="package.missing")
