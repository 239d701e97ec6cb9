"""A hook of mkdocs: links to files of the repository that are no pages become their names."""

import re

_OUTSIDE = re.compile(
    r"\[`?([^\]`]+)`?\]\((?:\.\./)+(?:examples|bench|src|README|CONTRIBUTING)[^)]*\)"
)


def on_page_markdown(markdown: str, **_: object) -> str:
    return _OUTSIDE.sub(r"`\1`", markdown)
