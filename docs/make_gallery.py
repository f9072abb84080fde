"""Pictures of pages for docs/gallery: `python docs/make_gallery.py runs/window/report.html heads=attention/page.html`.

Each page is opened in a real browser and kept as docs/gallery/NAME.png; NAME is the page's folder unless it is said. Needs
playwright (the extra `test`) and a browser: chromium, google-chrome, or the one that LILLIPUT_BROWSER names.
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
    parser.add_argument("pages", nargs="+", metavar="[NAME=]FILE", help="an .html file, and the name of its picture")
    parser.add_argument("--out", type=Path, default=GALLERY, help="folder of the pictures [docs/gallery]")
    parser.add_argument("--width", type=int, default=1200, help="of the window [1200]")
    parser.add_argument("--height", type=int, default=2000, help="what is below is cut off [2000]")
    parser.add_argument("--dark", action="store_true", help="as readers see it who prefer the dark")
    arguments = parser.parse_args()
    pages = [name_page(page) for page in arguments.pages]
    missing = [str(place) for _, place in pages if not place.is_file()]
    if missing:
        print(f"there is no file {missing[0]}", file=sys.stderr)
        return 2
    take_pictures(pages, arguments.out, arguments.width, arguments.height, arguments.dark)
    return 0


def name_page(text: str) -> tuple[str, Path]:
    name, equals, place = text.partition("=")
    if equals:
        return name, Path(place)
    return Path(text).absolute().parent.name, Path(text)


def take_pictures(pages: list[tuple[str, Path]], folder: Path, width: int, height: int, dark: bool) -> None:
    from playwright.sync_api import sync_playwright

    known = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    browser_place = os.environ.get("LILLIPUT_BROWSER") or next(filter(None, known), None)
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=browser_place, args=["--no-sandbox", "--disable-gpu"])
        for name, place in pages:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
            page.goto(place.absolute().as_uri())
            page.wait_for_timeout(500)  # a page that draws by itself has done so by then
            tall = min(height, page.evaluate("document.documentElement.scrollHeight"))
            kept = folder / f"{name}.png"
            page.screenshot(path=kept, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": tall})
            print(f"{kept}  {width} x {tall}, {kept.stat().st_size:,} bytes")
            page.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
