// Draws /ui and /ui/jobs/<id> from the server's JSON, once a second while something moves. No library, no build step.
// Every text is set as text, never as HTML: tables, messages and logs are other people's words.

const page = document.body.dataset.page;
const base = location.pathname.replace(/\/ui(\/.*)?$/, "");
const element = (id) => document.getElementById(id);
const live = new Set(["QUEUED", "RUNNING"]);

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("lance-api-key");
  const headers = { ...(options.headers || {}), ...(key ? { "x-api-key": key } : {}) };
  const answer = await fetch(base + path, { ...options, headers });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const error = new Error(body.error || `HTTP ${answer.status}`);
  error.status = answer.status;
  throw error;
}

function tell(error) {
  const needsKey = error && error.status === 401;
  element("login").hidden = !needsKey;
  const hadKey = sessionStorage.getItem("lance-api-key") !== null;
  element("notice").hidden = !error || (needsKey && !hadKey);
  element("notice").textContent = error ? error.message : "";
}

element("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("lance-api-key", element("key").value.trim());
  refresh();
});

function make(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const when = (ms) => (ms ? new Date(ms).toLocaleString() : "");

function took(job) {
  return duration(((job.finished_ms || Date.now()) - job.creation_ms) / 1000);
}

// How the job's driver began (cold, standby or reused) and how long the job waited for it.
function started(job) {
  if (!job.claimed_ms) return job.start_path;
  const waited = `claimed after ${duration((job.claimed_ms - job.creation_ms) / 1000)}`;
  return job.start_path ? `${job.start_path}, ${waited}` : waited;
}

function duration(exact) {
  const seconds = Math.max(0, exact);
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

// Rows without a value because the rule failed on them; a job that has any is not drawn as complete.
function failedRows(job) {
  const told = [(job.result || {}).rows_failed, (job.failure || {}).rows_failed, (job.progress || {}).rows_failed];
  return told.find((rows) => rows) || 0;
}

function failedShare(job) {
  const failed = failedRows(job);
  const assigned = (job.result || {}).rows_assigned || 0;
  return failed ? failed / Math.max(failed, failed + assigned) : 0;
}

function failedWords(job) {
  const share = job.result ? ` (${(100 * failedShare(job)).toFixed(1)} %)` : "";
  return failedRows(job) ? `${whole.format(failedRows(job))} rows failed${share}` : "";
}

function fraction(job) {
  const { rows_total, rows_done, fragments_total, fragments_done } = job.progress || {};
  if (job.job_state === "DONE") return 1 - failedShare(job);
  if (rows_total) return Math.min(1, rows_done / rows_total);
  return fragments_total ? Math.min(1, fragments_done / fragments_total) : 0;
}

function bar(target, job) {
  if (job.job_state === "RUNNING" && fraction(job) === 0) target.removeAttribute("value"); // moving, length unknown
  else target.value = fraction(job);
  target.className = failedRows(job) ? `${job.job_state} incomplete` : job.job_state;
}

// The task that asked for the job, as a link where the server's configuration says where Airflow is.
function taskLink(requester, airflow, text) {
  if (!requester || !airflow) return make("span", text);
  const { dag_id: dag, run_id: run, task_id: task, map_index: index } = requester;
  const path = ["dags", dag, "runs", run, "tasks", task, ...(index >= 0 ? ["mapped", index] : [])];
  const link = make("a", text);
  link.href = `${airflow.replace(/\/+$/, "")}/${path.map(encodeURIComponent).join("/")}`;
  return link;
}

function taskName({ task_id: task, map_index: index }) {
  return index >= 0 ? `${task}[${index}]` : task;
}

let older = [];
let nextPage = null;

async function drawJobs() {
  const state = element("state").value;
  const listing = await (await ask(`/ui/data/jobs?state=${encodeURIComponent(state)}`)).json();
  if (!older.length) nextPage = listing.page_token || null;
  const shown = new Set(listing.jobs.map((job) => job.job_id));
  const jobs = [...listing.jobs, ...older.filter((job) => !shown.has(job.job_id))];
  element("counts").textContent = Object.entries(listing.counts).map(([name, n]) => `${n} ${name.toLowerCase()}`).join(" · ");
  element("version").textContent = listing.version;
  element("table").hidden = jobs.length === 0;
  element("none").hidden = jobs.length > 0;
  element("more").hidden = !nextPage;
  element("rows").replaceChildren(...jobs.map((job) => jobRow(job, listing.airflow_url)));
  return jobs.some((job) => live.has(job.job_state));
}

function jobRow(job, airflow) {
  const row = make("tr");
  row.append(make("td"));
  row.lastChild.append(make("span", job.job_state, `state ${job.job_state}`));
  const what = job.spec.column ? `${job.table} · ${job.spec.column}` : job.table;
  row.append(make("td", what));
  const link = make("a", job.job_id.slice(0, 8));
  link.href = `${base}/ui/jobs/${encodeURIComponent(job.job_id)}`;
  link.title = `${job.job_type} ${job.job_id}`;
  row.append(make("td"));
  row.lastChild.append(link);
  row.append(make("td"));
  if (job.requester) {
    const task = taskLink(job.requester, airflow, `${job.requester.dag_id} · ${taskName(job.requester)}`);
    task.title = job.requester.run_id;
    row.lastChild.append(task);
  }
  const progress = make("progress");
  bar(progress, job);
  row.append(make("td"));
  row.lastChild.append(progress);
  if (failedRows(job)) row.lastChild.append(make("div", failedWords(job), "incomplete"));
  row.append(make("td", job.progress.rows_per_second ? short.format(job.progress.rows_per_second) : "", "number"));
  row.append(make("td", when(job.creation_ms)));
  row.append(make("td", took(job), "number"));
  return row;
}

function firstFailed(job) {
  const [first] = (job.result || job.failure || {}).failed_rows || [];
  return first && (first.row_id === undefined ? first.message : `row ${first.row_id}: ${first.message}`);
}

async function drawJob() {
  const id = decodeURIComponent(location.pathname.split("/").filter(Boolean).pop());
  const { job, sentence, samples, events, log, log_attempts: attempts, airflow_url: airflow } = await (await ask(`/ui/data/jobs/${encodeURIComponent(id)}`)).json();
  element("main").hidden = false;
  document.title = `${job.job_state} · ${job.table}`;
  element("title").textContent = job.spec.column ? `${job.table} · ${job.spec.column}` : job.table;
  element("state").textContent = job.cancel_requested && live.has(job.job_state) ? "CANCELLING" : job.job_state;
  element("state").className = `state ${job.job_state}`;
  element("cancel").hidden = !live.has(job.job_state);
  element("cancel").disabled = job.cancel_requested;
  element("failure").hidden = !job.failure;
  if (job.failure) {
    const again = job.failure.retryable ? "It may succeed when tried again." : "";
    const more = job.failure.message.trim().split("\n").slice(1);
    const phase = job.job_state === "FAILED" ? `It failed in ${job.failure.phase}.` : "";
    element("failure").textContent = [sentence, ...more, `${phase} ${again}`.trim()].filter(Boolean).join("\n");
  }
  const done = job.progress || {};
  element("phase").textContent = job.job_state === "QUEUED" ? "waiting for a driver" : done.phase || "";
  bar(element("bar"), job);
  const asked = job.requester || {};
  const facts = [
    ["job", job.job_id], ["type", job.job_type], ["cluster", job.cluster], ["attempt", job.attempt],
    ["DAG", asked.dag_id], ["task", job.requester && taskLink(asked, airflow, taskName(asked))], ["run", asked.run_id],
    ["try", asked.try_number], ["submitted", when(job.creation_ms)], ["driver", started(job)], ["took", took(job)],
    ["rows", done.rows_total ? `${whole.format(done.rows_done)} of ${whole.format(done.rows_total)}` : done.rows_done && whole.format(done.rows_done)],
    ["fragments", done.fragments_total && `${whole.format(done.fragments_done)} of ${whole.format(done.fragments_total)}`],
    ["failed rows", failedWords(job)], ["first failed row", firstFailed(job)],
  ];
  const pairs = facts.filter(([, value]) => value !== undefined && value !== null && value !== 0 && value !== "");
  element("facts").replaceChildren(...pairs.flatMap(([name, value]) => {
    const shown = make("dd");
    shown.append(value instanceof Node ? value : String(value));
    return [make("dt", name), shown];
  }));
  chart(samples, job);
  element("events").replaceChildren(...events.slice().reverse().map((event) => {
    const row = make("tr");
    row.append(make("td", new Date(event.at_ms).toLocaleTimeString(), "number soft"));
    row.append(make("td", event.state, `state ${event.state}`));
    row.append(make("td", event.message));
    return row;
  }));
  element("request").textContent = JSON.stringify(job.spec.request, null, 2);
  element("result-section").hidden = !job.result;
  element("result").textContent = job.result ? JSON.stringify(job.result, null, 2) : "";
  const box = element("log");
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 20;
  box.textContent = log || (attempts.length ? "" : "No driver has written anything on this server yet.");
  if (atEnd) box.scrollTop = box.scrollHeight;
  element("log-link").hidden = !attempts.length;
  element("log-link").dataset.path = `/v1/jobs/${encodeURIComponent(id)}/log?bytes=4194304`;
  return live.has(job.job_state);
}

function average(job) {
  const rows = (job.progress || {}).rows_done;
  if (!rows || !job.finished_ms) return "Nothing measured yet.";
  const seconds = Math.max(0.001, job.progress.compute_seconds || (job.finished_ms - (job.claimed_ms || job.creation_ms)) / 1000);
  return `${whole.format(rows)} rows computed in ${duration(seconds)}: ${short.format(rows / seconds)} rows/s, without the wait for a driver`;
}

function chart(samples, job) {
  const [area, curve] = element("chart").querySelectorAll("path");
  const highest = Math.max(0, ...samples.map(([, , rate]) => rate));
  const drawn = samples.length > 1 && highest > 0; // else too short for a driver to report a speed
  element("chart").style.display = drawn ? "" : "none";
  if (!drawn) {
    element("chart-words").textContent = highest ? `${short.format(highest)} rows/s` : average(job);
    return;
  }
  const first = samples[0][0];
  const span = samples[samples.length - 1][0] - first || 1;
  const points = samples.map(([ms, , rate]) => `${((ms - first) / span * 600).toFixed(1)},${(112 - rate / highest * 104).toFixed(1)}`);
  curve.setAttribute("d", `M${points.join("L")}`);
  area.setAttribute("d", `M0,120L${points.join("L")}L600,120Z`);
  const now = samples[samples.length - 1];
  element("chart-words").textContent = `peak ${short.format(highest)} rows/s · last ${short.format(now[2])} rows/s · ${Math.round(span / 1000)} s shown`;
}

let timer = null;

async function refresh() {
  clearTimeout(timer);
  let moving = true;
  try {
    moving = await (page === "jobs" ? drawJobs() : drawJob());
    tell(null);
  } catch (error) {
    tell(error);
    if (error.status === 401) return; // until a key is given
  }
  const pause = document.hidden ? 15000 : moving ? 1000 : 5000;
  timer = setTimeout(refresh, pause);
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());

if (page === "jobs") {
  element("state").addEventListener("change", () => { older = []; refresh(); });
  element("more").addEventListener("click", async () => {
    const state = encodeURIComponent(element("state").value);
    try {
      const listing = await (await ask(`/ui/data/jobs?state=${state}&page_token=${encodeURIComponent(nextPage)}`)).json();
      older = [...older, ...listing.jobs];
      nextPage = listing.page_token || null;
      refresh();
    } catch (error) { tell(error); }
  });
} else {
  element("cancel").addEventListener("click", async () => {
    const id = decodeURIComponent(location.pathname.split("/").filter(Boolean).pop());
    element("cancel").disabled = true;
    try {
      await ask("/v1/jobs/cancel", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ job_id: id }) });
      refresh();
    } catch (error) { element("cancel").disabled = false; tell(error); }
  });
  element("log-link").addEventListener("click", async (event) => {
    // Fetched, not followed: a link could not carry the API key.
    event.preventDefault();
    try {
      const blob = await (await ask(event.currentTarget.dataset.path)).blob();
      window.open(URL.createObjectURL(blob));
    } catch (error) { tell(error); }
  });
}

refresh();
