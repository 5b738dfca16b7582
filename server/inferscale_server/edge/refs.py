"""References inside a JSON schema: does one lead back to where it stands?

Knows: JSON pointers and what contains what. Refuses to know: keywords other than `$ref`.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from urllib.parse import unquote


def refers_to_itself(root: object) -> bool:
    """Is there a `$ref` below `root`, as a pointer from it, to something that holds, or leads to, that `$ref`?"""
    targets = {id(target) for reference in _references(root) if (target := _target(root, reference)) is not None}
    if not targets:
        return False
    graph: TopologicalSorter[int] = TopologicalSorter()
    for holder, reference in _held(root, root, targets, ()):
        target = _target(root, reference)
        if target is not None:
            graph.add(holder, id(target))
    try:
        graph.prepare()
    except CycleError:
        return True
    return False


def _held(root: object, node: object, targets: set[int], holders: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """Each reference with each target that it stands in. As deep as the tree, which has been checked."""
    if id(node) in targets:
        holders = (*holders, id(node))
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str):
            yield from ((holder, reference) for holder in holders)
    for child in _below(node):
        yield from _held(root, child, targets, holders)


def _references(root: object) -> Iterator[str]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            yield node["$ref"]
        waiting += _below(node)


def _target(root: object, reference: str) -> object | None:
    """The container that a reference names, None when there is none."""
    if not (reference == "#" or reference.startswith("#/")):
        return None
    node = root
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isascii() and name.isdigit() and len(name) < 7 and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node if isinstance(node, dict | list) else None


def _below(node: object) -> list[object]:
    children = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
    return [child for child in children if isinstance(child, dict | list)]
