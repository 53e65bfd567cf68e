"""`make docs`: renew every page and picture that is made from the code or the running program, then build the site in build/site."""

from __future__ import annotations

import subprocess
import sys

from tests import api_reference, configuration_reference
from tests.cli import field_tables
from tests.website import interop_page, pictures, shots

if __name__ == "__main__":
    api_reference.PAGE.write_text(api_reference.page())
    configuration_reference.PAGE.write_text(configuration_reference.page())
    field_tables.write()
    interop_page.PAGE.write_text(interop_page.page(interop_page.collected()))
    pictures.write()
    shots.take()
    sys.exit(subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"], check=False).returncode)
