"""Logit processors that were registered by name; `generate.processors` applies them.

Owns: their table, which is empty until something is registered. An entry is built with the tokenizer and returns a
`row_history.Processor`. Does not own: the built-in processors, each of which has a setting of its own (`processors`).
"""

from __future__ import annotations

from lilliput.settings.choice_tables import TABLES, Choice, ChoiceTable

REGISTERED: ChoiceTable[Choice] = TABLES["generate.processors"]
