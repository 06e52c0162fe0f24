"""Each text of the dashboard is in the catalogue of each language, and nothing else is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from headgate.admin import schedules
from headgate.admin.failures import Recurrence
from headgate.admin.find import FoundKind
from headgate.admin.timeline import UNSPENT
from headgate.http import dashboard, sign_in_page
from headgate.http.auth import BasicAuth, BearerAuth, OneTimeToken, Role
from headgate.http.languages import COOKIE, SOURCE, catalogue, languages, translated
from headgate.http.static_files import CATALOGUE, LISTS, STATIC
from headgate.jobs.audit import AuditWord, SignInAction, SubjectKind
from headgate.jobs.job import JobState, On
from headgate.schedules.schedule import Misfire, Overlap, Skipped
from tests.faces.http.stage import EVERYBODY, client, make_app

SCRIPTS = STATIC / "js"
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
CALL = re.compile(r"(?<![\w.])(t|withElements|(?:format\.)?plural)\(\s*")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
TOKEN = re.compile(rf"//[^\n]*|/\*.*?\*/|{LITERAL.pattern}|[\w$.]+|\s+|.", re.DOTALL)
REGEX = re.compile(r"/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\]|\\.)*\])+/[a-z]*")
TEMPLATE_PART = re.compile(r"((?:[^`\\$]|\\.|\$(?!\{))*)(`|\$\{)")
LOOKS_LIKE_A_TEXT = re.compile(r"[A-Z][a-z]|[a-z]{2} | [a-z]{2}")
TRANSLATING = {"t", "withElements", "plural", "format.plural"}
COMPARING = (".includes", ".startsWith", ".endsWith", ".replace", ".closest", ".matches", ".querySelector")
NOT_SHOWN = re.compile(r"(class|kind|extra|path): ")
UNTRANSLATED = {
    *("Headgate", "Headgate ", " (OpenAPI).", "Esc", " ms", "< 1 ms", ", pid "),
    *("0 6 * * mon-fri", "every 2 weeks on mon, wed at 9:00, 17:30"),
    *("ApiError", "TimeoutError", "X-Headgate-Token", "Content-Type", "headgate ", "(hover: hover)", "dialog wide"),
}
"""Names and examples that are the same in each language."""
TRANSLATIONS = [language for language in languages() if language != SOURCE]
FORMS = {"de": {"one", "other"}, "it": {"one", "many", "other"}}
"""The plural forms of `Intl.PluralRules`; a form without a text takes that of `other`."""


def texts_of_scripts() -> tuple[set[str], set[str]]:
    """Return the texts of all modules, and those that have a count."""
    plain, counted = (
        {*words(), *(column.label for each in LISTS.values() for column in each if column.only != "cli")},
        set(),
    )
    for path in SCRIPTS.rglob("*.js"):
        if path.name in ("language.js", CATALOGUE):
            continue
        source = path.read_text("utf-8")
        for call in CALL.finditer(source):
            if source[: call.start()].endswith("function "):
                continue
            arguments = list(arguments_at(source, call.end()))
            where = f"{path.name}: {source[call.start() : call.end() + 60]!r}"
            if call[1] in ("t", "withElements"):
                assert LITERAL.fullmatch(arguments[0]), f"{where}: the text is not a literal, so it cannot be found"
                plain.add(ast.literal_eval(arguments[0]))
            else:
                assert all(LITERAL.fullmatch(each) for each in arguments[1:]), f"{where}: a noun is not a literal"
                one, *several = [ast.literal_eval(each) for each in arguments[1:]]
                counted.add(f"{{n}} {several[0] if several else one + 's'}")
    return plain, counted


def words() -> Iterator[str]:
    source = (SCRIPTS / "language.js").read_text("utf-8")
    listed = re.search(r"const WORDS = \[(.*?)\n\];", source, re.DOTALL)
    assert listed is not None
    for literal in LITERAL.findall(listed[1]):
        yield ast.literal_eval(literal)


def arguments_at(source: str, at: int) -> Iterator[str]:
    """Return the source of each argument of the call whose first argument begins here."""
    begin, depth = at, 0
    while True:
        if (literal := LITERAL.match(source, at)) is not None:
            at = literal.end()
            continue
        char = source[at]
        if char in "([{":
            depth += 1
        elif depth == 0 and char in "),":
            if argument := source[begin:at].strip():
                yield argument
            begin = at + 1
            if char == ")":
                return
        elif char in ")]}":
            depth -= 1
        at += 1


@dataclass(slots=True)
class Bracket:
    """An open bracket, or a value of a template; `begin` is where its current argument, property or item begins."""

    opening: str
    callee: str
    inside: int
    begin: int


def untranslated(source: str) -> Iterator[str]:
    """Return the literals of a module that look like texts and are neither translated, compared, code nor classes.

    A text has a capital letter, two words, or a word next to a value: `${count} jobs`. A word in lower case alone is
    not found, because it may be a name.
    """
    opened = [Bracket("", "", 0, 0)]
    at, previous = 0, ""
    while at < len(source):
        token = REGEX.match(source, at) if previous[-1:] in ("", *"(,=:[!&|?{};>") or previous == "return" else None
        if token is None or source.startswith(("//", "/*"), at):
            token = TOKEN.match(source, at)
        assert token is not None
        text, at, start = token[0], token.end(), at
        if text.isspace() or text.startswith(("//", "/*")):
            continue
        is_end_of_value = text == "}" and opened[-1].opening == "${"
        if is_end_of_value:
            opened.pop()
        part = TEMPLATE_PART.match(source, at) if text == "`" or is_end_of_value else None
        if part is not None:
            literal, at = part[1], part.end()
        else:
            literal = text[1:-1] if LITERAL.fullmatch(text) else ""
        if LOOKS_LIKE_A_TEXT.search(literal) and is_shown(source, opened, start, previous):
            yield literal
        if part is not None:
            if part[2] == "${":
                opened.append(Bracket("${", "", at, at))
        elif text in "([{":
            opened.append(Bracket(text, previous if text == "(" else "", at, at))
        elif text in ")]}":
            opened.pop()
        elif text in ",;":
            opened[-1].begin = at
        previous = text


def is_shown(source: str, opened: list[Bracket], at: int, previous: str) -> bool:
    """Return whether people see a literal, by where it is."""
    callee = opened[-1].callee
    if callee in TRANSLATING or callee == "classes" or callee.endswith(COMPARING):
        return False
    if source.startswith(('"code"', '"kbd"'), opened[-1].inside) or source[:at].rstrip().endswith(("===", "!==")):
        return False
    arguments = (source[each.begin :].lstrip() for each in opened)
    return not any(NOT_SHOWN.match(argument) for argument in arguments)


def texts_of_the_sign_in_page() -> set[str]:
    """Return the texts that are shown before the scripts are loaded."""
    source = Path(sign_in_page.__file__).read_text("utf-8")
    found = {each[1] for each in re.finditer(r"""(?:translated|text)\((?:'|")([A-Z][^'"]*)(?:'|")""", source)}
    for auth in (BasicAuth, BearerAuth, OneTimeToken):
        found |= {auth.form.label, auth.form.hint}
    return found - {""} | {"This user name, password or token is wrong."}


@pytest.mark.parametrize("language", TRANSLATIONS)
def test_each_text_is_translated_and_no_translation_is_stale(language: str) -> None:
    plain, counted = texts_of_scripts()
    plain |= texts_of_the_sign_in_page()
    assert len(plain) > 500
    found = catalogue(language)
    assert sorted((plain | counted) - set(found)) == [], "texts without a translation"
    assert sorted(set(found) - plain - counted) == [], "translations of texts that are not there any more"
    assert {text for text, value in found.items() if not isinstance(value, str)} == counted
    assert list(found) == sorted(found), "the texts are sorted"


def test_each_text_is_given_to_a_function_that_translates_it() -> None:
    found = {
        (path.name, text)
        for path in SCRIPTS.rglob("*.js")
        if path.name != "language.js"
        for text in untranslated(path.read_text("utf-8"))
    }
    allowed = {*UNTRANSLATED, *words()}
    assert sorted(each for each in found if each[1] not in allowed) == [], "texts outside of t(…)"
    assert {text for _, text in found} >= UNTRANSLATED


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ('h("p", null, "No jobs yet")', ["No jobs yet"]),
        ('h("p", { class: a ? "faint num" : "b c" }, t("No jobs yet"), plural(2, "idle queue"))', []),
        ("toast(`Node ${`no. ${t('One')}`} is gone`) // It's one.", ["Node ", " is gone"]),
        ('t("{jobs} wait", { jobs: `${count} jobs` })', [" jobs"]),
        ("if (key === \"Escape\" && /['`\"]/.test(x)) button('Stop', {}, () => y)", ["Stop"]),
        ('{ kind: "small primary", name: `Stop ${name}` }', ["Stop "]),
    ],
)
def test_texts_are_found_that_are_not_translated(source: str, texts: list[str]) -> None:
    assert list(untranslated(source)) == texts


def test_each_word_of_the_api_that_a_page_shows_is_one_of_the_words() -> None:
    kinds = (AuditWord, FoundKind, Misfire, On, Overlap, Recurrence, Role, SignInAction, Skipped, SubjectKind)
    said = {*JobState, *UNSPENT, *(each.replace("_", " ") for kind in kinds for each in get_args(kind))}
    # No word is shown for the success of a leader, which is what most followers need.
    said.remove("success")
    source = Path(schedules.__file__).read_text("utf-8")
    actions = set(re.findall(r'self\._note\("([a-z ]+)"', source))
    assert len(actions) > 5
    assert sorted((said | actions) - set(words())) == []


@pytest.mark.parametrize("language", TRANSLATIONS)
def test_translations_have_the_values_of_their_texts(language: str) -> None:
    for text, value in catalogue(language).items():
        if isinstance(value, str):
            assert set(PLACEHOLDER.findall(value)) == set(PLACEHOLDER.findall(text)), text
            assert value.strip() == value != "", text
        else:
            assert {"one", "other"} <= set(value) <= FORMS[language], text
            assert all("{n}" in form for form in value.values()), text


def test_the_languages_are_the_files_of_the_folder() -> None:
    assert languages() == ("en", "de", "it")
    assert translated("Sign in", "de") == "Anmelden"
    assert translated("Sign in", "en") == "Sign in"
    assert translated("no text of ours", "de") == "no text of ours"


@pytest.mark.parametrize(
    ("accepted", "chosen", "language"),
    [
        (None, None, "en"),
        ("de", None, "de"),
        ("de-CH,de;q=0.9,en;q=0.8", None, "de"),
        ("fr-FR,it;q=0.7,de;q=0.8", None, "de"),
        ("en-GB,de;q=0.5", None, "en"),
        ("it;q=0,de;q=0.1", None, "de"),
        ("fr,*;q=0.5", None, "en"),
        ("q=1;;,\x41" * 100, None, "en"),
        ("de", "it", "it"),
        ("de", "en", "en"),
        ("de", "../de", "de"),
    ],
)
async def test_a_page_is_in_the_language_of_the_user(accepted: str | None, chosen: str | None, language: str) -> None:
    headers = {} if accepted is None else {"Accept-Language": accepted}
    if chosen is not None:
        headers["Cookie"] = f"{COOKIE}={chosen}"
    async with make_app().open() as app, client(dashboard(app, auth=EVERYBODY)) as caller:
        page = await caller.get("/jobs", headers=headers)
        assert f'<html lang="{language}">' in page.text
        (script,) = re.findall(r'type="module" src="(static/\w+/app[\w.]*\.js)"', page.text)
        source = (await caller.get(f"/{script}")).text
        assert f'export const LANGUAGE = "{language}"'.removeprefix("export ") in source
        assert ('"Overview": ' in source) is (language != "en")
        # A browser that has the page in another language does not keep it.
        known = await caller.get("/jobs", headers={**headers, "If-None-Match": page.headers["etag"]})
        other = "it" if language == "de" else "de"
        fresh = await caller.get(
            "/jobs", headers={"If-None-Match": page.headers["etag"], "Cookie": f"{COOKIE}={other}"}
        )
        assert (known.status_code, fresh.status_code) == (304, 200)
