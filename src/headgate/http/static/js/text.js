/** Make text from jobs and users safe to read and to copy. */

/**
 * Control characters other than tab and line feed, characters that change the direction of text (bidi), and invisible
 * ones. Joiners are kept: scripts and emoji need them.
 */
const INVISIBLE = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

/** Escape invisible characters as JSON and shells do: \u202e. @param {string} text */
export function visible(text) {
  return text.replace(INVISIBLE, escaped);
}

/** Quote one word of a shell command. The result contains no control character for the terminal. @param {string} word */
export function quoted(word) {
  if (/^[\w@%+=:,./-]+$/.test(word)) return word;
  if (word === visible(word) && !/[\t\n]/.test(word)) return `'${word.replaceAll("'", "'\\''")}'`;
  const plain = word.replaceAll("\\", "\\\\").replaceAll("'", "\\'").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
  return `$'${visible(plain)}'`;
}

/** @param {string} char */
function escaped(char) {
  return Array.from({ length: char.length }, (_, at) => `\\u${char.charCodeAt(at).toString(16).padStart(4, "0")}`).join("");
}
