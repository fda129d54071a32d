// One run over time: what it earns, what it waits for, what happened, on one axis.

import { duration, h, number, replace, table } from "../dom.js";
import { ask, runApi, runPage } from "../api.js";
import { Charts } from "../charts.js";
import { setParameters } from "../app.js";

const CLOCK = "time/wall_clock_s";
const CHARTS = [
  ["Reward", "Mean of the episodes scored since the step before.", { "reward/mean": "all", "reward/trained_mean": "trained on", "reward/success_rate": "success" }],
  ["Entropy", "Of the next token, nats. Falling to 0: collapse.", { "train/entropy": "entropy" }],
  ["Staleness", "Policy updates between sampling and training.", { "off_policy/staleness_mean": "mean", "off_policy/staleness_max": "largest" }],
  ["Idle and waiting", "Shares of each side's time.", { "perf/rollout_idle_share": "engines idle", "perf/permit_wait_share": "slots held by staleness", "perf/train_wait_share": "trainer waits" }],
  ["Accelerators", "Where they are.", { "controller/rollout": "generate", "controller/trainer": "train", "controller/switching": "switching" }],
  ["Update", "Gradient norm before clipping.", { "train/grad_norm": "gradient norm" }],
  ["Clipping", "Share of trained tokens.", { "train/clip_fraction": "clipped" }],
  ["Prefix sharing", "Sequence tokens per unique token.", { "tree/compression": "sharing" }],
  ["Tokens per second", "", { "rollout/tokens_per_s": "sampled", "perf/train_tokens_per_s": "trained" }],
];
const QUIET = new Set(["trained", "allocation"]);

export async function overviewPage(body, run) {
  const api = runApi(run);
  let charts = null;
  let drawn = 0;

  async function draw() {
    const mine = ++drawn;
    const parameters = new URLSearchParams(location.search);
    const over = parameters.get("over") === "update" ? "update" : "clock";
    const more = (parameters.get("metrics") ?? "").split(",").filter(Boolean);
    const names = [...new Set([...CHARTS.flatMap(([, , series]) => Object.keys(series)), ...more])];
    const [about, metrics, events] = await Promise.all([ask(api), ask(`${api}/metrics`, { names: names.join(",") }), ask(`${api}/events`)]);
    if (mine !== drawn) return;
    const x = over === "clock" ? metrics[CLOCK].map((seconds) => seconds / 60) : metrics.step;
    const axis = over === "clock" ? "minutes" : "policy update";
    const at = (event) => over === "clock" ? event[CLOCK] / 60 : event.step;
    const marks = events.filter((event) => !QUIET.has(event.event)).map((event) =>
      ({ x: at(event), kind: event.event in { evaluation: 1, checkpoint: 1 } ? event.event : ["start", "finished", "resume"].includes(event.event) ? "checkpoint" : "other" }));
    const stretchGiven = [parameters.get("from"), parameters.get("to")].map((text) => text === null ? NaN : Number(text));
    const stretch = stretchGiven.every(Number.isFinite) ? stretchGiven : null;

    const trained = new Set(events.filter((event) => event.event === "trained").map((event) => event.step));
    charts?.destroy();
    charts = new Charts([0, Math.max(1, ...x, ...events.map(at))], (next) => { setParameters({ from: next ? next[0].toPrecision(6) : "", to: next ? next[1].toPrecision(6) : "" }); follow(next); });
    charts.stretch = stretch;
    const figures = [];
    const show = (title, reading, series) => {
      const there = Object.keys(series).filter((name) => metrics[name]?.some((value) => value !== null));
      if (there.length) figures.push(charts.add(title, reading, [x, ...there.map((name) => metrics[name])], there.map((name) => series[name]), marks, axis));
    };
    show(...CHARTS[0]);
    const evaluations = events.filter((event) => event.event === "evaluation" && typeof event["eval/success_rate"] === "number");
    if (evaluations.length) figures.push(charts.add("Held-out success", "Evaluations on tasks that are not trained on.",
      [evaluations.map(at), evaluations.map((event) => event["eval/success_rate"])], ["success"], marks, axis, true));
    CHARTS.slice(1).forEach((chart) => show(...chart));
    for (const name of more) show(name, about.metrics[name] ?? "", { [name]: name });

    const eventsPlace = h("div");
    const stepsPlace = h("div");
    const episodesLink = h("a", { class: "button" }, "Episodes");
    function follow(next) {
      const inside = (value) => !next || (value >= next[0] && value <= next[1]);
      const listed = events.filter((event) => !QUIET.has(event.event) && inside(at(event))).reverse();
      replace(eventsPlace, table(`${listed.length} events${next ? " in the stretch" : ""}, newest first`, [
        ["time", (event) => duration(event[CLOCK])],
        ["update", (event) => number(event.step), "number"],
        ["event", (event) => h("b", {}, event.event)],
        ["", (event) => Object.entries(event).filter(([name, value]) => !["event", "step", CLOCK, "at"].includes(name) && value !== null)
          .map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value)}`).join(", ")],
      ], listed.slice(0, 300)));
      const rows = metrics.step.map((step, row) => ({ step, row })).filter(({ row }) => inside(x[row])).reverse();
      replace(stepsPlace, table(`${rows.length} updates${next ? " in the stretch" : ""}, newest first`, [
        ["update", ({ step }) => number(step)],
        ["time", ({ row }) => duration(metrics[CLOCK][row]), "number"],
        ["reward", ({ row }) => number(metrics["reward/mean"][row]), "number"],
        ["success", ({ row }) => number(metrics["reward/success_rate"][row]), "number"],
        ["entropy", ({ row }) => number(metrics["train/entropy"][row]), "number"],
        ["staleness", ({ row }) => number(metrics["off_policy/staleness_mean"][row]), "number"],
        ["trained on", ({ step }) => trained.has(step) ? h("a", { href: `${runPage(run)}/steps/${step}/tree` }, "tree") : "–"],
        ["sharing", ({ row }) => number(metrics["tree/compression"][row]), "number"],
      ], rows.slice(0, 500), ({ step }) => `${runPage(run)}/episodes?step=${step}`));
      whole.disabled = !next;
    }
    const whole = h("button", { type: "button", onclick: () => charts.select(null) }, "The whole run");
    episodesLink.setAttribute("href", `${runPage(run)}/episodes`);
    const axisChoice = h("select", { id: "over", onchange: (event) => { setParameters({ over: event.target.value === "update" ? "update" : "", from: "", to: "" }); draw(); } },
      h("option", { value: "clock", selected: over === "clock" }, "wall clock"), h("option", { value: "update", selected: over === "update" }, "policy update"));
    const metricChoice = h("select", { id: "metric", onchange: (event) => { setParameters({ metrics: [...new Set([...more, event.target.value])].join(",") }); draw(); } },
      h("option", { value: "" }, "add one"), Object.keys(about.metrics).filter((name) => name !== "step").map((name) => h("option", { value: name }, name)));
    replace(body,
      h("h1", {}, run, " ", h("span", { class: `state ${about.state}` }, about.state)),
      h("p", { class: "dim" }, [about.environment, `${number(about.steps)}${about.of_steps === null ? "" : ` of ${number(about.of_steps)}`} updates`,
        duration(about.wall_clock_s), `${number(about.episodes)} episodes`].filter(Boolean).join(" · ")),
      h("div", { class: "bar" }, episodesLink, h("label", { for: "over" }, "over ", axisChoice), h("label", { for: "metric" }, "metric ", metricChoice), whole,
        h("span", { class: "dim" }, "Drag over a chart to select a stretch. Dashed: evaluations green, faults and other events red, checkpoints grey.")),
      figures.length ? h("div", { class: "charts" }, figures) : h("p", {}, "No step is finished yet."),
      h("h2", {}, "Events"), eventsPlace, h("h2", {}, "Updates"), stepsPlace,
      h("details", {}, h("summary", {}, "Configuration"), h("pre", {}, JSON.stringify(about.config, null, 2))));
    follow(stretch);
    if (stretch) charts.select(stretch, false);
  }

  await draw();
  return { grew: (runs) => { if (runs.includes(run) && !body.contains(document.activeElement)) draw(); }, leave: () => charts?.destroy() };
}
