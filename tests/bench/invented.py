"""A tiny invented conversation in LoCoMo's format. Nothing of LoCoMo's text is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def invented() -> dict[str, Any]:
    """Two speakers, three sessions (the tenth must sort after the second), four questions."""
    return {
        "speaker_a": "Ilse",
        "speaker_b": "Ravi",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [{"speaker": "Ilse", "dia_id": "D1:1", "text": "I built a canoe!"}],
        "session_1_observation": {
            "Ilse": [["Ilse built a canoe.", "D1:1"], ["Ilse paddles at dawn.", ["D1:1", "D1:3"]]],
            "Ravi": [["Ravi bakes rye bread.", "D1:2"]],
        },
        "session_2_date_time": "12:09 am on 13 September, 2023",
        "session_2_observation": {"Ravi": [["Ravi sold his bakery.", "D2:1"]]},
        "session_10_date_time": "12:30 PM on 4 January 2024",
        "session_10_observation": {"Ilse": [["Ilse moved to Ghent.", "D10:1"]], "Ravi": []},
        "session_11_date_time": "9:00 am on 5 January, 2024",
        "qa": [
            {"question": "What did Ilse build?", "answer": "a canoe", "evidence": ["D1:1"], "category": 4},
            {"question": "When did Ravi sell his bakery?", "answer": 2023, "category": 2},
            {"question": "Where does Ilse live?", "answer": "Ghent", "category": 4},
            {"question": "What did Ravi build?", "adversarial_answer": "a canoe", "category": 5},
        ],
    }


def long_session(facts: int) -> dict[str, Any]:
    """One more session, of so many facts."""
    observations = [[f"Ravi sold loaf number {at}.", "D3:1"] for at in range(facts)]
    return {"session_3_date_time": "1:00 pm on 2 October, 2023", "session_3_observation": {"Ravi": observations}}


def write(folder: Path, name: str = "7", changed: dict[str, Any] | None = None) -> Path:
    """The conversation as `folder/name.json`, with some keys changed; returns the folder."""
    (folder / f"{name}.json").write_text(json.dumps(invented() | (changed or {})), "utf-8")
    return folder
