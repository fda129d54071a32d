// Questions to the viewer's API. An answer that is an error is thrown with its text.

export async function ask(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const response = await fetch(query.size ? `${path}?${query}` : path, { headers: { accept: "application/json" } });
  const text = await response.text();
  let answer;
  try { answer = JSON.parse(text); } catch { throw new Error(text.slice(0, 300)); }
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

export const runApi = (run) => `/api/runs/${encodeURIComponent(run)}`;
export const runPage = (run) => `/r/${encodeURIComponent(run)}`;
