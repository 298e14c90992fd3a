"""Opens pages in a headless browser."""

import html
import json
import re
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Browser:
    """Opens a page in a headless browser, runs a script in it, and returns the script's result."""

    def __init__(self, program, folder):
        self._command = [program, "--headless", "--no-sandbox", "--disable-gpu"]
        self._command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000"]
        self._folder = folder

    def __call__(self, page, script="null"):
        probe = """<script>
        const errors = [];
        addEventListener("error", (event) => errors.push(event.message));
        addEventListener("securitypolicyviolation", (event) => errors.push(event.blockedURI));
        </script>"""
        ask = f"""<script>
        const point = (node) => node.dispatchEvent(new PointerEvent("pointerenter"));
        const choose = (id, value) => {{
            $(id).value = value; $(id).dispatchEvent(new Event("change")); }};
        const all = (selector) => [...document.querySelectorAll(selector)];
        const texts = (selector) => all(selector).map((node) => node.textContent);
        const buttons = all(".token");
        const found = (() => {{ return {script}; }})();
        document.body.replaceChildren(Object.assign(document.createElement("pre"), {{
            id: "found", textContent: JSON.stringify({{ found, errors }}) }}));
        </script>"""
        # A page that lets in only its own script must let in those of the test.
        page = re.sub("script-src [^;]*;", "script-src 'unsafe-inline';", page, count=1)
        page = page.replace("<body>", f"<body>{probe}").replace("</body>", f"{ask}</body>")
        shown = self.shown(page)
        found = re.search(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
        assert found, shown[-2000:]
        result = json.loads(html.unescape(found[1]))
        assert result["errors"] == []
        return result["found"]

    def shown(self, page):
        """Returns the HTML of the page after its scripts have run."""
        path = self._folder / "page.html"
        path.write_text(page, encoding="utf-8")
        finished = subprocess.run(
            [*self._command, "--dump-dom", path.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
        )
        return finished.stdout or finished.stderr


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)
