// The router: which page an address means, keys that work on every page, and what happens when a run grows.

import { h, replace } from "./dom.js";
import { runPage } from "./api.js";
import { runsPage } from "./pages/runs.js";
import { overviewPage } from "./pages/overview.js";
import { episodesPage } from "./pages/episodes.js";
import { treePage } from "./pages/tree.js";
import { groupPage } from "./pages/group.js";
import { transcriptPage } from "./pages/transcript.js";

const PAGES = [
  [/^\/$/, runsPage, () => []],
  [/^\/r\/([^/]+)$/, overviewPage, (run) => [[run, runPage(run)]]],
  [/^\/r\/([^/]+)\/episodes$/, episodesPage, (run) => [[run, runPage(run)], ["episodes", `${runPage(run)}/episodes`]]],
  [/^\/r\/([^/]+)\/groups\/(\d+)$/, groupPage, (run, group) => [[run, runPage(run)], ["episodes", `${runPage(run)}/episodes`],
    [`group ${group}`, `${runPage(run)}/groups/${group}`]]],
  [/^\/r\/([^/]+)\/(groups|steps)\/(\d+)\/tree$/, treePage, (run, what, at) => [[run, runPage(run)], ["episodes", `${runPage(run)}/episodes`],
    what === "groups" ? [`group ${at}`, `${runPage(run)}/groups/${at}`] : [`update ${at}`, `${runPage(run)}/episodes?step=${at}`],
    ["tree", `${runPage(run)}/${what}/${at}/tree`]]],
  [/^\/r\/([^/]+)\/episodes\/([ge]\d+\.\d+)$/, transcriptPage, (run, episode) => [[run, runPage(run)], ["episodes", `${runPage(run)}/episodes`],
    ...(episode[0] === "g" ? [[`group ${Number(episode.slice(1).split(".")[0])}`, `${runPage(run)}/groups/${Number(episode.slice(1).split(".")[0])}`]] : []),
    [episode, `${runPage(run)}/episodes/${episode}`]]],
];

const main = document.getElementById("main");
let shown = null;

/** Go to an address. replaceState: it takes the place of the one before, as a filter that is being typed does. */
export async function go(address, { replaceState = false, render = true } = {}) {
  history[replaceState ? "replaceState" : "pushState"](null, "", address);
  if (render) await show();
}

/** Change parameters of the page's address, and nothing else; empty ones go. */
export function setParameters(changes, options = {}) {
  const parameters = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) parameters.delete(name);
    else parameters.set(name, value);
  }
  return go(parameters.size ? `${location.pathname}?${parameters}` : location.pathname, { replaceState: true, render: false, ...options });
}

async function show() {
  const place = location.pathname;
  shown?.leave?.();
  shown = null;
  for (const [pattern, page, path] of PAGES) {
    const match = place.match(pattern);
    if (!match) continue;
    const names = match.slice(1).map(decodeURIComponent);
    const steps = [["runs", "/"], ...path(...names)];
    document.title = steps.slice(1).map(([name]) => name).reverse().join(" · ") || "Runs";
    replace(document.getElementById("path"), steps.map(([name, href], at) =>
      [at ? h("span", { "aria-hidden": "true" }, " / ") : null, h("a", { href, "aria-current": at === steps.length - 1 ? "page" : null }, name)]));
    const body = h("div");
    main.setAttribute("aria-busy", "true");
    replace(main, body);
    try {
      const made = await page(body, ...names);
      if (location.pathname !== place || !body.isConnected) { made?.leave?.(); return; }
      shown = made;
    } catch (error) {
      replace(body, h("p", { class: "fault", role: "alert" }, error.message));
    }
    main.setAttribute("aria-busy", "false");
    return;
  }
  replace(main, h("p", { class: "fault", role: "alert" }, "There is no such page."));
  main.setAttribute("aria-busy", "false");
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const href = link.getAttribute("href");
  if (!href.startsWith("/") || href.startsWith("/api/") || href.startsWith("//")) return;
  event.preventDefault();
  go(href).then(() => { scrollTo(0, 0); main.focus({ preventScroll: true }); });
});
addEventListener("popstate", show);

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if (typing || event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.key === "j" || event.key === "k") {
    const rows = [...main.querySelectorAll("a.row")];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    const next = at < 0 ? (event.key === "j" ? 0 : rows.length - 1) : at + (event.key === "j" ? 1 : -1);
    rows[Math.max(0, Math.min(rows.length - 1, next))].focus();
    event.preventDefault();
  } else if (event.key === "/") {
    const search = main.querySelector("input[type=search]");
    if (search) { search.focus(); event.preventDefault(); }
  } else {
    shown?.key?.(event);
  }
});

function listen() {
  const live = document.getElementById("live");
  const stream = new EventSource("/api/stream");
  stream.onopen = () => { live.textContent = "live"; live.className = "on"; };
  stream.onerror = () => { live.textContent = "the viewer has ended"; live.className = "off"; };
  stream.addEventListener("grew", (event) => shown?.grew?.(JSON.parse(event.data)));
  stream.addEventListener("view", (event) => go(JSON.parse(event.data)));
}

listen();
show();
