// All runs: which go on, how far they are, how well they do.

import { ago, duration, h, number, replace, reward, share, table } from "../dom.js";
import { ask, runPage } from "../api.js";

export async function runsPage(body) {
  async function draw() {
    const runs = await ask("/api/runs");
    const focused = document.activeElement?.getAttribute?.("href");
    replace(body, h("h1", {}, "Runs"), table(`${runs.length} ${runs.length === 1 ? "run" : "runs"}`, [
      ["run", (run) => run.run],
      ["state", (run) => h("span", { class: `state ${run.state}` }, run.state)],
      ["updates", (run) => run.of_steps === null ? number(run.steps) : `${number(run.steps)} of ${number(run.of_steps)}`, "number"],
      ["reward", (run) => reward(run.reward), "number"],
      ["held-out success", (run) => share(run.success), "number"],
      ["episodes", (run) => run.indexing ? `${number(run.episodes)}, reading` : number(run.episodes), "number"],
      ["wall clock", (run) => duration(run.wall_clock_s), "number"],
      ["last written", (run) => ago(run.updated_at), "number"],
      ["environment", (run) => run.environment ?? "–"],
      ["directory", (run) => h("span", { class: "dim" }, run.path)],
    ], runs, (run) => runPage(run.run)));
    if (focused) [...body.querySelectorAll("a.row")].find((each) => each.getAttribute("href") === focused)?.focus();
  }
  await draw();
  const timer = setInterval(() => draw().catch(() => {}), 5000);
  return { grew: draw, leave: () => clearInterval(timer) };
}
