"""Look up a word of the output by any of its spellings."""

from __future__ import annotations

from rksp.report.glossary.answer_words import ANSWER_WORDS
from rksp.report.glossary.measured_words import MEASURED_WORDS
from rksp.report.glossary.run_words import RUN_WORDS
from rksp.report.glossary.word import Word

WORDS = (*ANSWER_WORDS, *MEASURED_WORDS, *RUN_WORDS)


def find_word(wanted: str) -> Word | None:
    """Return the word of this name or spelling; case, hyphens and underscores do not matter."""
    return _BY_KEY.get(_key(wanted))


def _key(text: str) -> str:
    return text.strip().lower().replace("_", " ").replace("-", " ")


_BY_KEY = {_key(name): word for word in WORDS for name in (word.name, *word.spellings)}
