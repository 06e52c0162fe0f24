"""The dashboard in German and Italian, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from headgate.http.languages import catalogue
from tests.faces.browser.conftest import Shop, visiting
from tests.faces.browser.test_dashboard import CUT_OFF, fits, pages

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

TEXTS = """() => {
  const data = "code, pre, .mono, [lang=en], noscript, script, style, .json-body, .log-message";
  const found = [];
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) if (!nodes.currentNode.parentElement.closest(data)) found.push(nodes.currentNode.nodeValue);
  for (const name of ["aria-label", "title", "placeholder", "alt", "data-label"])
    for (const each of document.querySelectorAll(`[${name}]`)) found.push(each.getAttribute(name));
  return [...new Set(found.map((text) => text.trim()).filter(Boolean))];
}"""
"""All texts of a page, without those that are code or data."""

DATA = {"default", "1 at once", "2 at once"}
"""The name of a queue, and rules as they are stored, in titles."""

BROKEN_NAMES = """() => [...document.querySelectorAll(".node-cell b, .chip")]
    .filter((each) => each.getBoundingClientRect().height > 30)
    .map((each) => each.textContent)"""
"""Names of nodes and queues that take more than one line."""

VALUE = re.compile(r"\\\{\w+\\\}")


def english(language: str) -> re.Pattern[str]:
    """What matches a text that the catalogue translates, but not its translations."""
    wanted = []
    translated = set()
    for text, found in catalogue(language).items():
        forms = {found} if isinstance(found, str) else set(found.values())
        translated |= forms
        # Of short texts with values too little is left: "{count} of {total}".
        if text not in forms | DATA and len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\{\w+\}", "", text))) >= (
            2 if "{" in text else 1
        ):
            wanted.append(text)
    # "in {time}" is German, too.
    return re.compile("|".join(VALUE.sub(".+?", re.escape(text)) for text in wanted if text not in translated))


@pytest.mark.parametrize("language", ["de", pytest.param("it", marks=pytest.mark.nightly)])
async def test_no_page_has_a_text_in_english(browser: Browser, shop: Shop, language: str) -> None:
    untranslated = english(language)
    found: list[str] = []
    async with visiting(browser, shop) as visit:
        cookie = {"name": "headgate_language", "value": language, "url": shop.base}
        await visit.page.context.add_cookies([cookie])  # type: ignore[list-item]
        for name, where in pages(shop).items():
            await visit.go(where)
            await expect(visit.page.locator(".live-connected")).to_be_visible()
            texts = await visit.page.evaluate(TEXTS)
            assert len(texts) > 50
            found += [f"{name}: {text}" for text in texts if untranslated.fullmatch(text) and text not in DATA]
            found += [f"{name}: columns of {label} are out of sight" for label in await visit.page.evaluate(CUT_OFF)]
            found += [f"{name}: {broken} is broken" for broken in await visit.page.evaluate(BROKEN_NAMES)]
            if name in ("overview", "jobs", "key", "schedule"):
                await visit.look("narrow", "light")
                assert await fits(visit), f"{name} is too wide for a phone"
                await visit.look("wide", "light")
        await visit.page.keyboard.press("?")
        await expect(visit.page.get_by_role("dialog")).to_be_visible()
        found += [f"help: {text}" for text in await visit.page.evaluate(TEXTS) if untranslated.fullmatch(text)]
    assert not found, "\n".join(found)


@pytest.mark.nightly
async def test_the_tabs_of_jobs_have_the_same_icons_in_each_language(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        icons = visit.page.get_by_role("navigation").and_(visit.page.locator(".tabs")).locator("svg")
        used: dict[str, list[str]] = {}
        for language in ("en", "de", "it"):
            cookie = {"name": "headgate_language", "value": language, "url": shop.base}
            await visit.page.context.add_cookies([cookie])  # type: ignore[list-item]
            await visit.go("jobs")
            used[language] = [await each.inner_html() for each in await icons.all()]
        assert len(set(used["en"])) == 9, "each state has an icon of its own"
        assert used["de"] == used["it"] == used["en"]


async def test_a_user_chooses_a_language_which_is_kept(browser: Browser, shop: Shop) -> None:
    async with visiting(browser, shop) as visit:
        page = visit.page
        await visit.go("overview")
        await expect(page.locator("html")).to_have_attribute("lang", "en")
        await page.get_by_label("Language").select_option("Deutsch")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Übersicht")
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await visit.go("jobs?state=failed")
        await expect(page).to_have_title("Jobs: fehlgeschlagen · Shop")
        await page.get_by_label("Sprache").select_option("Italiano")
        await expect(page.get_by_role("button", name="Accoda", exact=True)).to_be_visible()
        await page.get_by_label("Lingua").select_option("English")
        await expect(page.get_by_role("button", name="Enqueue", exact=True)).to_be_visible()


async def test_the_audit_says_in_the_language_which_rule_was_set(browser: Browser, shop: Shop) -> None:
    await shop.app.admin.limits.set_rule("spare", "9/m")
    async with visiting(browser, shop) as visit:
        cookie = {"name": "headgate_language", "value": "de", "url": shop.base}
        await visit.page.context.add_cookies([cookie])  # type: ignore[list-item]
        await visit.go("audit?kind=limit&subject=spare")
        entries = visit.page.get_by_role("table").locator("tbody")
        await expect(entries).to_contain_text("auf 9/m + 0.02s setzen")
        await expect(entries).to_contain_text("alle Schlüssel")
    assert await shop.app.admin.limits.unset("spare")


@pytest.mark.nightly
async def test_the_sign_in_page_is_in_the_language_of_the_browser(browser: Browser, shop: Shop) -> None:
    context = await browser.new_context(locale="it-CH")
    try:
        page = await context.new_page()
        await page.goto(shop.base)
        await page.get_by_label("Nome utente").fill("ada")
        await page.get_by_label("Password").fill("a wrong password")
        await page.get_by_role("button", name="Accedi").click()
        await expect(page.get_by_role("alert")).to_have_text("Questo nome utente, password o token è sbagliato.")
        await page.get_by_label("Password").fill("ada's password")
        await page.get_by_role("button", name="Accedi").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Panoramica")
    finally:
        await context.close()
