// Plays static/live.js (its path is the first argument) on a page of no more parts than it touches. The second argument is what the
// console answers, turn by turn; printed is what the page shows after each.
"use strict";

const { readFileSync } = require("node:fs");
const vm = require("node:vm");

const [script, played] = process.argv.slice(2);
const answers = JSON.parse(played);
const seen = [];
const notices = [];
const classes = new Set();
const main = {
  dataset: { live: "2" },
  text: "first",
  classList: { add: (name) => classes.add(name), remove: (name) => classes.delete(name) },
  querySelector: () => null,
  replaceChildren: (text) => (main.text = text),
  before: (notice) => notices.push(notice),
};

function parsed(text) {
  const { shown, warning } = JSON.parse(text);
  const found = { childNodes: [shown], querySelector: () => (warning ? { textContent: warning } : null) };
  return { querySelector: () => (shown || warning ? found : null) };
}

const page = {
  console,
  AbortSignal,
  Date,
  location: { href: "/" },
  document: {
    hidden: false,
    querySelector: () => main,
    querySelectorAll: () => [],
    createElement: () => {
      const notice = { setAttribute() {}, remove: () => notices.splice(notices.indexOf(notice), 1) };
      return notice;
    },
  },
  DOMParser: class {
    parseFromString(text) {
      return parsed(text);
    }
  },
  async fetch() {
    const answer = answers.shift();
    if (answer === null) throw new TypeError("Failed to fetch");
    const { status, ...rest } = answer;
    return { ok: status === 200, status, statusText: "", text: async () => JSON.stringify(rest) };
  },
  setTimeout(resume) {
    seen.push({ main: main.text, old: classes.has("old"), notices: notices.map((notice) => notice.textContent) });
    if (answers.length) resume();
    else process.stdout.write(JSON.stringify(seen.slice(1)));
  },
};
console.warn = () => {};
vm.runInNewContext(readFileSync(script, "utf8"), page);
