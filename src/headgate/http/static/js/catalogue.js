/** The language of this page. The server replaces this module for a page in another language than English. */

/** @type {string} */
export const LANGUAGE = "en";

/** The languages that a user can choose. @type {string[]} */
export const LANGUAGES = ["en"];

/** Translations by English text; a text with a count has one for each plural form. @type {Record<string, string | Record<string, string>>} */
export const CATALOGUE = {};
