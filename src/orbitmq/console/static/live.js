// Keeps a page that says data-live="seconds" fresh: the same page is fetched again and its <main> takes the old one's place.
// Forms stand under data-keep and stay as they are, so that nobody's typing is lost. Figures that name a series draw its last values.
// While that fails, the page says that what it shows is old, since when and why.
"use strict";

const series = {};
const KEPT = 60;
const PATIENCE_MS = 30_000; // more than a page takes whose brokers are all silent
let shownAt = new Date();
let notice = null;

function draw() {
  for (const figure of document.querySelectorAll("[data-series]")) {
    const values = (series[figure.dataset.series] ??= []);
    values.push(Number(figure.dataset.value));
    if (values.length > KEPT) values.shift();
  }
  for (const chart of document.querySelectorAll("[data-chart]")) {
    const values = series[chart.dataset.chart] ?? [];
    const top = Math.max(1, ...values);
    const points = values.map((value, at) => `${(at * 120) / (KEPT - 1)},${30 - (28 * value) / top}`);
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("points", points.join(" "));
    chart.replaceChildren(line);
  }
}

function sayOld(main, why) {
  if (!notice) {
    notice = document.createElement("p");
    notice.className = "old-notice";
    notice.setAttribute("role", "alert");
    main.before(notice);
    main.classList.add("old");
  }
  const words = `This is old: it was so at ${shownAt.toLocaleString()}, and could not be refreshed since. Why: ${why}`;
  if (notice.textContent !== words) notice.textContent = words;
}

function sayFresh(main) {
  shownAt = new Date();
  notice?.remove();
  notice = null;
  main.classList.remove("old");
}

async function fetched() {
  let answer, text;
  try {
    answer = await fetch(location.href, {
      headers: { Accept: "text/html" },
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    text = await answer.text();
  } catch (error) {
    throw new Error(`the console does not answer (${error.message})`);
  }
  const found = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  if (!answer.ok) throw new Error(found?.querySelector(".warning")?.textContent || `it answered ${answer.status}`);
  if (!found) throw new Error("it answered with another page");
  return found;
}

async function refresh(main) {
  if (document.hidden) return;
  const fresh = await fetched();
  const kept = main.querySelector("[data-keep]");
  if (kept) fresh.querySelector("[data-keep]")?.replaceWith(kept);
  main.replaceChildren(...fresh.childNodes);
  sayFresh(main);
  draw();
}

async function keepFresh(main, seconds) {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, seconds * 1000));
    try {
      await refresh(main);
    } catch (error) {
      sayOld(main, error.message); // the next turn tries again
    }
  }
}

draw();
const live = document.querySelector("main[data-live]");
if (live) keepFresh(live, Number(live.dataset.live));
