// Keeps a page that says data-live="seconds" fresh: the same page is fetched again and its <main> takes the old one's place.
// Forms stand under data-keep and stay as they are, so that nobody's typing is lost. Figures that name a series draw its last values.
"use strict";

const series = {};
const KEPT = 60;

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

async function refresh(main) {
  if (document.hidden) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  const kept = main.querySelector("[data-keep]");
  if (kept) fresh.querySelector("[data-keep]")?.replaceWith(kept);
  main.replaceChildren(...fresh.childNodes);
  draw();
}

async function keepFresh(main, seconds) {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, seconds * 1000));
    try {
      await refresh(main);
    } catch (error) {
      console.warn("the page could not be refreshed", error); // the next turn tries again
    }
  }
}

draw();
const live = document.querySelector("main[data-live]");
if (live) keepFresh(live, Number(live.dataset.live));
