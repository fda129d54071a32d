// Episodes: newest first, by filters that stand in the address.

import { ago, duration, h, number, replace, reward, svg, table, versions } from "../dom.js";
import { ask, runApi, runPage } from "../api.js";
import { setParameters } from "../app.js";

const PAGE = 100;
const NUMBERS = ["reward_min", "reward_max", "errors_min", "turns_min", "turns_max", "version", "staleness_min", "step"];
const LABELS = { reward_min: "reward from", reward_max: "to", errors_min: "errors from", turns_min: "turns from", turns_max: "to",
  version: "policy version", staleness_min: "staleness from", step: "trained at update" };
const SORTS = { newest: "newest", oldest: "oldest", reward: "highest reward", "-reward": "lowest reward", turns: "most turns", tokens: "most tokens",
  errors: "most errors", seconds: "slowest", staleness: "stalest", advantage: "highest advantage", "-advantage": "lowest advantage" };
const KINDS = { "": "all", trained: "trained on", dropped: "dropped", evaluated: "evaluations", failed: "failed" };
const TEXTS = ["domain", "split", "ended", "task"];

export async function episodesPage(body, run) {
  const api = runApi(run);
  const about = await ask(api);
  const results = h("div", {});
  const picture = h("div", {});
  let asked = 0;

  const given = () => Object.fromEntries(new URLSearchParams(location.search));
  function change(changes) {
    setParameters({ offset: "", ...changes });
    return list();
  }

  async function list() {
    const mine = ++asked;
    const parameters = given();
    const { sort, offset, limit, ...filters } = parameters;
    const [found, histogram] = await Promise.all([
      ask(`${api}/episodes`, { limit: PAGE, ...parameters }), ask(`${api}/histogram`, filters),
    ]).catch((error) => { if (mine === asked) replace(results, h("p", { class: "fault", role: "alert" }, error.message)); return []; });
    if (mine !== asked || !found) return;
    const focused = document.activeElement?.getAttribute?.("href");
    const first = Number(offset ?? 0);
    const last = first + found.episodes.length;
    const caption = `${number(found.total)} episodes${found.total > found.episodes.length ? `, ${number(first + 1)} to ${number(last)}` : ""}${found.indexing ? "; more are being read" : ""}`;
    replace(results, table(caption, [
      ["episode", (each) => each.id],
      ["reward", (each) => reward(each.reward), "number"],
      ["advantage", (each) => number(each.advantage), "number"],
      ["task", (each) => each.task],
      ["domain", (each) => each.domain],
      ["ended", (each) => each.ended],
      ["turns", (each) => number(each.turns), "number"],
      ["tokens", (each) => number(each.tokens), "number"],
      ["errors", (each) => number(each.errors), "number"],
      ["versions", (each) => versions(each.versions), "number"],
      ["used", (each) => used(each)],
      ["seconds", (each) => number(each.seconds), "number"],
      ["written", (each) => ago(each.at), "number"],
      ["group", (each) => each.group === null ? "–" : h("a", { href: `${runPage(run)}/groups/${each.group}` }, each.group), "number"],
    ], found.episodes, (each) => `${runPage(run)}/episodes/${each.id}`),
    h("div", { class: "bar" },
      first > 0 ? h("button", { type: "button", onclick: () => change({ offset: String(Math.max(0, first - PAGE)) }) }, "Previous page") : null,
      last < found.total ? h("button", { type: "button", onclick: () => change({ offset: String(last) }) }, "Next page") : null));
    replace(picture, drawHistogram(histogram));
    if (focused) [...results.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
  }

  function drawHistogram({ edges, counts }) {
    if (!counts.length) return null;
    const most = Math.max(...counts);
    return h("div", { class: "histogram", role: "group", "aria-label": "Rewards of these episodes" }, counts.map((count, at) => {
      const words = `${number(count)} episodes with reward ${number(edges[at])}${edges[at] === edges[at + 1] ? "" : ` to ${number(edges[at + 1])}`}`;
      const height = count ? Math.max(2, 56 * count / most) : 0;
      return h("button", { type: "button", title: words, "aria-label": words, disabled: !count, onclick: () => {
        change({ reward_min: String(edges[at]), reward_max: String(edges[at + 1]) });
        form.reward_min.value = String(edges[at]);
        form.reward_max.value = String(edges[at + 1]);
      } }, svg("svg", { viewBox: "0 0 10 60", width: "22", height: "60", "aria-hidden": "true" }, svg("rect", { x: "0", y: String(60 - height), width: "10", height: String(height), fill: "#1d4ed8" })));
    }), h("span", { class: "dim" }, `reward ${number(edges[0])} to ${number(edges[edges.length - 1])}`));
  }

  const now = given();
  const kind = ["trained", "dropped", "evaluated", "failed"].find((name) => now[name] === "true") ?? "";
  let waiting = null;
  const typed = (name) => (event) => { clearTimeout(waiting); const value = event.target.value; waiting = setTimeout(() => change({ [name]: value }), 250); };
  const form = h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    h("label", { for: "q" }, "text ", h("input", { type: "search", id: "q", name: "q", value: now.q ?? "", placeholder: "words of the transcript", oninput: typed("q") })),
    TEXTS.map((name) => h("label", { for: name }, `${name} `, h("select", { id: name, name, onchange: (event) => change({ [name]: event.target.value }) },
      h("option", { value: "" }, "any"), [...new Set([...about.values[name], ...(now[name] ? [now[name]] : [])])].filter(Boolean)
        .map((value) => h("option", { value, selected: now[name] === value }, value))))),
    NUMBERS.map((name) => h("label", { for: name }, `${LABELS[name]} `, h("input", { type: "number", step: "any", id: name, name, value: now[name] ?? "", oninput: typed(name) }))),
    h("label", { for: "kind" }, "show ", h("select", { id: "kind", onchange: (event) =>
      change({ trained: "", dropped: "", evaluated: "", failed: "", ...(event.target.value ? { [event.target.value]: "true" } : {}) }) },
    Object.entries(KINDS).map(([value, text]) => h("option", { value, selected: kind === value }, text)))),
    h("label", { for: "sort" }, "order ", h("select", { id: "sort", onchange: (event) => change({ sort: event.target.value === "newest" ? "" : event.target.value }) },
      Object.entries(SORTS).map(([value, text]) => h("option", { value, selected: (now.sort ?? "newest") === value }, text)))),
    h("a", { class: "button", href: `${runPage(run)}/episodes` }, "No filters"));
  replace(body, h("h1", {}, "Episodes of ", run), form, picture, results);
  await list();
  return { grew: (runs) => { if (runs.includes(run)) list(); }, leave: () => clearTimeout(waiting) };
}

function used(each) {
  if (each.failure) return h("span", { class: "bad" }, "failed");
  if (each.evaluation !== null) return `evaluation after ${each.evaluation}`;
  if (each.step !== null) return `update ${each.step}, staleness ${number(each.staleness)}`;
  return each.dropped ? `dropped: ${each.dropped.replaceAll("_", " ")}` : "–";
}
