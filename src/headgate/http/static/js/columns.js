/** The columns of lists. The server replaces this module by one that has them; without it, tables have none. */

/** @typedef {{name: string, label: string, kind: string, is_rare: boolean}} Declared */

/** The columns by list. @type {Record<string, Declared[]>} */
export const COLUMNS = {};
