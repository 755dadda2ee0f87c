"""Check HTML pages for keyboard and screen-reader users, by axe in headless Chromium.

    pip install --no-deps axe-core-python && apt-get install chromium
    mkdocs build --site-dir html && python .ci/axe.py html/index.html model.html
    python .ci/axe.py --dark html/index.html    # with the site's dark colours

Prints each violation with the elements it is about, and ends with 1 if there is any. CI does not
run it: it has no browser.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")
"""Tags of axe's rules that count."""

DARK, LIGHT = 0, 1
"""Chromium's numbers for the colours that a reader prefers."""

_RUN = """
<script>{axe}</script>
<script>
window.addEventListener("load", () => setTimeout(() => axe.run(
  {{runOnly: {rules}}}).then(found => {{
    const report = document.createElement("pre");
    report.id = "axe-report";
    report.textContent = JSON.stringify(found.violations);
    document.body.append(report);
  }}), 500));
</script>
"""


def axe_script() -> str:
    """Return axe's program, as the distribution axe-core-python has it."""
    package = find_spec("axe_core_python")
    if package is None or package.origin is None:
        sys.exit("this needs axe-core-python: pip install --no-deps axe-core-python")
    return (Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Path, axe: str, browser: str, *, dark: bool) -> list[dict[str, Any]]:
    """Return what axe finds on a page; the page's folder holds a copy of it for a moment."""
    program = _RUN.format(axe=axe, rules=json.dumps([*RULES]))
    text = page.read_text(encoding="utf-8")
    with tempfile.NamedTemporaryFile(
        "w", dir=page.parent, suffix=".html", encoding="utf-8"
    ) as copy:
        before, end, after = text.rpartition("</body>")
        copy.write(f"{before}{program}{end}{after}")
        copy.flush()
        scheme = DARK if dark else LIGHT
        options = [f"--blink-settings=preferredColorScheme={scheme}"]
        options += ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000"]
        shown = subprocess.run(
            [browser, *options, "--virtual-time-budget=30000", "--dump-dom", f"file://{copy.name}"],
            capture_output=True,
            text=True,
            check=True,
        )
    report = re.search(r'<pre id="axe-report">(.*?)</pre>', shown.stdout, re.S)
    if report is None:
        sys.exit(f"{page}: axe did not report")
    found: list[dict[str, Any]] = json.loads(html.unescape(report[1]))
    return found


def main(pages: list[str]) -> int:
    """Print the violations of all pages; return 1 if there are any."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("this needs Chromium")
    axe, count = axe_script(), 0
    dark = "--dark" in pages
    pages = [name for name in pages if name != "--dark"]
    for name in pages:
        for violation in violations(Path(name).resolve(), axe, browser, dark=dark):
            count += 1
            print(f"{name}: {violation['id']} ({violation['impact']}): {violation['help']}")
            for node in violation["nodes"][:4]:
                print(f"    {' '.join(node['target'])}: {node['html'][:100]}")
                print(f"        {' '.join(node['failureSummary'].split())[:160]}")
    print(f"{len(pages)} pages, {count} violations")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
