"""Take screenshots of HTML pages for docs/gallery.

    python docs/make_gallery.py runs/window/report.html heads=attention/page.html

Each page is saved as docs/gallery/NAME.png; NAME defaults to the name of the page's folder. Requires playwright (the
extra `test`) and a browser: chromium, google-chrome, or the path in LILLIPUT_BROWSER.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

GALLERY = Path(__file__).parent / "gallery"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", metavar="[NAME=]FILE", help=".html file, optionally with a picture name")
    parser.add_argument("--out", type=Path, default=GALLERY, help="output folder [docs/gallery]")
    parser.add_argument("--width", type=int, default=1200, help="width of the window in pixels [1200]")
    parser.add_argument("--height", type=int, default=2000, help="maximum height of the picture in pixels [2000]")
    parser.add_argument("--dark", action="store_true", help="use dark mode")
    arguments = parser.parse_args()
    pages = [name_page(page) for page in arguments.pages]
    missing = [str(path) for _, path in pages if not path.is_file()]
    if missing:
        print(f"file not found: {missing[0]}", file=sys.stderr)
        return 2
    take_pictures(pages, arguments.out, arguments.width, arguments.height, arguments.dark)
    return 0


def name_page(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if equals:
        return name, Path(path)
    return Path(text).absolute().parent.name, Path(text)


def take_pictures(pages: list[tuple[str, Path]], folder: Path, width: int, height: int, dark: bool) -> None:
    from playwright.sync_api import sync_playwright

    browsers = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    browser_path = os.environ.get("LILLIPUT_BROWSER") or next(filter(None, browsers), None)
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        for name, path in pages:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
            page.goto(path.absolute().as_uri())
            page.wait_for_timeout(500)  # time for pages that draw with JavaScript
            tall = min(height, page.evaluate("document.documentElement.scrollHeight"))
            output = folder / f"{name}.png"
            page.screenshot(path=output, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": tall})
            print(f"{output}  {width} x {tall}, {output.stat().st_size:,} bytes")
            page.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
