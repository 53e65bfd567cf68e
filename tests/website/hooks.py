"""What mkdocs calls while it builds the site: pages that are made on the way, because they change with every line of code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

from tests.website.errors_page import page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "errors.md", content=page()))
    return files
