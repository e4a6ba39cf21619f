"""A server's page, clicked through in Chromium, with pictures of it.

    pip install playwright        # and a Chromium: apt install chromium, or playwright install chromium
    python -m tests.peer.dashboard_in_browser --dir pictures [--browser /usr/bin/chromium]

Needs no network. Ends with an error where something that should be on the page is not.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import click
import numpy as np

from gt.runtime.remote import RemoteSession
from tests.integration.cluster import Desk
from tests.integration.programs import server

SIZE = {"width": 1280, "height": 1000}


def work(address: str, over: threading.Event) -> None:
    """Have a client multiply and map until told to stop."""
    with contextlib.closing(RemoteSession(address, timeout=20)) as session:
        desk = Desk(session)
        x, y = desk.put(np.ones((300, 300))), desk.put(np.ones((300, 300)))
        while not over.wait(0.02):
            desk.get(desk.run("matmul", (x, (300, 300)), (y, (300, 300))))
            desk.get(desk.run("add", (x, (300, 300)), (y, (300, 300))))


def look(page: Any, root: str, folder: Path) -> None:
    """Go through the page as a person does."""
    faults: list[str] = []
    page.on("pageerror", lambda e: faults.append(str(e)))
    page.on("console", lambda m: faults.append(m.text) if m.type == "error" and "favicon" not in str(m.location) else None)
    page.goto(root)
    page.wait_for_selector("#workers tr:nth-child(3)")
    page.wait_for_selector("#clients tr:nth-child(2)")
    page.wait_for_timeout(4000)  # charts of a few samples
    page.screenshot(path=folder / "page.png", full_page=True)
    assert "2 ready" in page.inner_text("#head"), page.inner_text("#head")
    width = page.evaluate("[...document.querySelectorAll('#workers .matmul')].map(i => i.getBoundingClientRect().width)")
    assert max(width) > 0, "no worker's bar has a matmul"
    assert page.evaluate("boxes.length") > 10, "the timeline has no runs"
    x, y, wide, high = page.evaluate("boxes[boxes.length - 1].slice(0, 4)")
    page.hover("#timeline", position={"x": x + wide / 2, "y": y + high / 2})
    assert "of client" in page.inner_text("#run"), "a run of the timeline does not say what it is"
    page.wait_for_selector("#plans details:nth-child(2)")
    for summary in page.query_selector_all("#plans summary"):
        summary.click()
    texts = [pre.inner_text() for pre in page.query_selector_all("#plans pre")]
    assert any("matmul" in text for text in texts) and all(pre.is_visible() for pre in page.query_selector_all("#plans pre"))
    page.wait_for_timeout(6000)  # two more reads of plans: what is open stays open
    page.evaluate("shown = ''; plans()")  # also when plans are not as they were
    page.evaluate("details.get(1).dataset.state = 'made'; shown = ''; plans()")
    page.wait_for_timeout(500)
    assert all(d.get_attribute("open") is not None for d in page.query_selector_all("#plans details"))
    page.screenshot(path=folder / "plans_open.png", full_page=True)
    for name in ("metrics", "status.json", "plans.json"):
        page.goto(root + name)
        assert len(page.inner_text("body")) > 100, name
        page.screenshot(path=folder / f"{name.partition('.')[0]}.png")
    page.set_viewport_size({"width": 480, "height": 900})
    page.goto(root)
    page.wait_for_timeout(2500)
    page.screenshot(path=folder / "narrow.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 480, "a narrow window has to be scrolled sideways"
    assert not faults, faults


def look_at_a_lost_server(page: Any, folder: Path) -> None:
    """See what the page says once its server is gone."""
    page.wait_for_selector("#lost:not(:empty)", timeout=20_000)
    page.screenshot(path=folder / "lost.png")


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path("pictures"), show_default=True)
@click.option("--browser", default=shutil.which("chromium"), help="A Chromium. [default: the one on PATH, else playwright's]")
def main(folder: Path, browser: str | None) -> None:
    """Click through the page of a server of its own."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    over = threading.Event()
    with (
        sync_playwright() as play,
        contextlib.closing(play.chromium.launch(executable_path=browser, args=["--no-sandbox"])) as chromium,
    ):
        page = chromium.new_page(viewport=SIZE)
        with server(2, "gt", "server", "--dashboard", str(port)) as there:
            thread = threading.Thread(target=work, args=(there.address, over))
            thread.start()
            try:
                look(page, f"http://127.0.0.1:{port}/", folder)
            finally:
                over.set()
                thread.join(30)
        look_at_a_lost_server(page, folder)
    click.echo(f"all is there; pictures are in {folder}")


if __name__ == "__main__":
    main()
