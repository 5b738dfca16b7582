"""One memory service for each test, with a fake embedder."""

from tests.memory.conftest import clock as clock
from tests.memory.conftest import embedder as embedder
from tests.memory.conftest import memory as memory
from tests.memory.conftest import path as path
from tests.memory.conftest import sink as sink
