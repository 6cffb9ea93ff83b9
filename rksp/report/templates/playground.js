// The page of the playground: settings to an answer, and an answer to words and a figure.
// `predict` and `wordAt` come from classifiers/edge_model.js, which stands before this script.
"use strict";

const DATA = JSON.parse(document.getElementById("report").textContent);
const BAR = 0.5;
const at = (id) => document.getElementById(id);
const range = (count, of) => Array.from({ length: count }, (_, i) => of(i));
const twoDigits = (value) => Number(value.toPrecision(2));
const unique = (values) => [...new Set(values)].sort((a, b) => a - b);
const steps = (low, high, each) =>
  unique(range(Math.round((high - low) * each) + 1, (i) => Math.round(twoDigits(10 ** (low + i / each)))));
const powers = (low, high) =>
  unique(range(2 * (high - low) + 1, (i) => Math.round(2 ** (low + (i >> 1)) * (i % 2 ? 1.5 : 1))));

// Each setting that slides: the values at the stops of its slider, and what may be typed.
const SLIDERS = {
  learning_rate: { stops: unique(range(241, (i) => twoDigits(10 ** (-6 + i / 40)))), least: 1e-9, most: 1e3 },
  warmup_steps: { stops: [0, ...steps(1, 5, 10)], least: 0, most: 1e7, whole: true },
  max_steps: { stops: steps(1.3, 6, 10), least: 1, most: 1e8, whole: true },
  batch_size: { stops: powers(0, 14), least: 1, most: 1e7, whole: true },
  sequence_length: { stops: powers(5, 17), least: 1, most: 1e7, whole: true },
  width: { stops: powers(5, 14), least: 1, most: 65536, whole: true },
  depth: { stops: unique([...range(16, (i) => i + 1), ...range(20, (i) => 18 + 2 * i), ...range(10, (i) => 60 + 8 * i)]), least: 1, most: 1024, whole: true },
  vocabulary: { stops: unique([...powers(6, 18), 50257]), least: 2, most: 2e6, whole: true },
  min_lr_ratio: { stops: unique(range(51, (i) => Number((i / 50).toFixed(2)))), least: 0, most: 1 },
  adam_beta1: { stops: unique([0, 0.5, 0.7, ...range(20, (i) => Number((0.8 + i / 100).toFixed(2))), 0.995]), least: 0, most: 0.9999 },
  adam_beta2: { stops: unique([0.8, 0.85, 0.9, ...range(10, (i) => Number((0.91 + i / 100).toFixed(2))), 0.995, 0.998, 0.999, 0.9995, 0.9999]), least: 0, most: 0.99999 },
};
const CHOICES = ["optimizer", "schedule", "norm"];
const NAMES = [...Object.keys(SLIDERS), ...CHOICES];

let run = { ...DATA.settings };

// Numbers as every page of rksp writes them: `ground.text.short` and `words.percent`.
function short(value, digits = 3) {
  if (Math.abs(value) >= 1000 && Math.abs(value) < 1e6) return Math.round(value).toLocaleString("en-US");
  const plain = value.toPrecision(digits);
  if (plain.includes("e+") && Math.abs(value) < 1000) return Number(plain).toLocaleString("en-US");
  const small = value !== 0 && Math.abs(Number(value.toExponential(digits - 1))) < 1e-2;
  const [mantissa, power] = (small ? value.toExponential(digits - 1) : plain).split("e");
  return power === undefined ? String(Number(mantissa)) : `${Number(mantissa)}e${Number(power)}`;
}

function percent(share) {
  if (share > 0 && share < 0.005) return "<1%";
  if (share >= 0.995 && share < 1) return ">99%";
  return `${(100 * share).toFixed(0)}%`;
}

const shown = (value) => (value >= 1e6 ? value.toLocaleString("en-US") : short(value, 6));
const likelihood = (chance) => DATA.likelihood.find(([end]) => chance <= end)[1];
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// The answer to some settings: what the page shows, and what the test compares with Python.
function answerOf(settings) {
  const found = predict(DATA.model, settings, DATA.facts);
  const failed = found.failed(settings.learning_rate);
  const [low, high] = found.interval(settings.learning_rate);
  const reasons = found.reasons.length ? found.reasons : openAt(low, high, short(found.likelyEdge, 2));
  const verdict = reasons.length ? "cannot tell" : wordAt(BAR, failed, settings.learning_rate, found.doNotExceed);
  return { ...found, reasons, chance: failed, low, high, verdict, excess: found.expectedExcess(settings.learning_rate) };
}

// The address keeps what differs from the settings that the page was made with.
function address() {
  const changed = NAMES.filter((name) => run[name] !== DATA.settings[name]);
  return changed.map((name) => `${name}=${run[name]}`).join("&");
}

function fromAddress() {
  run = { ...DATA.settings };
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    const value = CHOICES.includes(name) ? text : Number(text);
    if (NAMES.includes(name) && isAllowed(name, value)) run[name] = value;
  }
}

function isAllowed(name, value) {
  if (CHOICES.includes(name)) return [...at(name).options].some((option) => option.value === value);
  const { least, most, whole } = SLIDERS[name];
  return Number.isFinite(value) && value >= least && value <= most && (!whole || Number.isInteger(value));
}

let waiting = null;
function keepAddress() {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const wanted = address();
    if (location.hash.slice(1) !== wanted) history.replaceState(null, "", wanted ? `#${wanted}` : location.pathname);
  }, 250);
}

function nearest(stops, value) {
  const off = (stop) => Math.abs(Math.log((stop + 1e-9) / (value + 1e-9)));
  const near = stops[0] >= 0 && stops[stops.length - 1] <= 1 && stops.length < 100 ? (stop) => Math.abs(stop - value) : off;
  return stops.reduce((best, stop, i) => (near(stop) < near(stops[best]) ? i : best), 0);
}

function showKnobs() {
  for (const [name, { stops }] of Object.entries(SLIDERS)) {
    const index = nearest(stops, run[name]);
    at(name).value = index;
    at(name).setAttribute("aria-valuetext", shown(run[name]));
    at(name).style.setProperty("--at", `${(100 * index) / (stops.length - 1)}%`);
    if (document.activeElement !== at(`typed-${name}`)) {
      at(`typed-${name}`).value = shown(run[name]);
      at(`typed-${name}`).removeAttribute("aria-invalid");
    }
  }
  for (const name of CHOICES) at(name).value = run[name];
  const idle = {
    adam_beta1: !DATA.facts.optimizers[run.optimizer].has_memories,
    adam_beta2: !DATA.facts.optimizers[run.optimizer].has_memories,
    min_lr_ratio: run.schedule === "constant",
  };
  for (const [name, is] of Object.entries(idle)) at(`knob-${name}`).classList.toggle("idle", is);
}

function fill(name, text) {
  for (const place of document.querySelectorAll(`[data-of=${name}]`)) place.textContent = text;
}

function show() {
  const said = answerOf(run);
  const isSure = said.verdict !== "cannot tell";
  showKnobs();
  at("verdict").className = `verdict ${said.verdict}`;
  at("badge").textContent = DATA.titles[said.verdict];
  at("headline").textContent = isSure ? `${sentence(likelihood(said.chance))} to fail` : "rksp cannot tell";
  for (const id of ["sure", "odds", "figures", "charts"]) at(id).hidden = !isSure;
  fill("failed", isSure ? percent(said.chance) : "–");
  fill("start", isSure ? short(said.startHere, 2) : "–");
  fill("edge", isSure ? short(said.likelyEdge, 2) : "–");
  fill("ceiling", isSure ? short(said.doNotExceed, 2) : "–");
  at("lead").textContent = isSure ? leadOf(said) : said.reasons.map((reason) => `${sentence(reason)}.`).join(" ");
  if (isSure) {
    const lost = said.expectedExcess(said.startHere);
    at("start-why").textContent = `P(failed) ${percent(said.failed(said.startHere))}, excess ${lost.toFixed(2)} nats`;
    at("gauge-span").setAttribute("x", `${100 * said.low}%`);
    at("gauge-span").setAttribute("width", `${100 * (said.high - said.low)}%`);
    at("gauge-here").setAttribute("cx", `${100 * said.chance}%`);
    drawCurve(said);
    showReasons(said.contributions);
  }
  showCommand(command());
  speak(said, isSure);
  keepAddress();
}

function leadOf(said) {
  const where = `At learning rate ${shown(run.learning_rate)}, over ${shown(run.max_steps)} steps, P(failed)`;
  const [low, high] = [percent(said.low), percent(said.high)];
  const chance = low === high ? `is ${percent(said.chance)}` : `lies between ${low} and ${high}`;
  const crossed = said.startHere > said.doNotExceed ? " In a run this short the best bet (S) is above the safe line (X)." : "";
  return `${where} ${chance}; the expected excess is ${said.excess.toFixed(2)} nats.${crossed}`;
}

let speaking = null;
function speak(said, isSure) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    at("spoken").textContent = isSure
      ? `${DATA.titles[said.verdict]}. P(failed) ${percent(said.chance)}, between ${percent(said.low)} and ${percent(said.high)}. ` +
        `Start here ${short(said.startHere, 2)}, likely edge ${short(said.likelyEdge, 2)}, do not exceed ${short(said.doNotExceed, 2)}.`
      : `rksp cannot tell. ${said.reasons.join("; ")}.`;
  }, 500);
}

// The figure, with the classes and the places of `figures.risk_curve`.
const FLAG = 18;
let scale = null;

function drawCurve(said) {
  const width = Math.max(280, at("curve").clientWidth - 26);
  const height = width > 600 ? 360 : 310;
  const marks = [
    ["start here", "safe", said.startHere],
    ["this run", "recipe", run.learning_rate],
    ["do not exceed", "edge", said.doNotExceed],
    ["likely edge", "edge", said.likelyEdge],
  ];
  const logs = marks.map(([, , value]) => Math.log10(value));
  const low = Math.min(-5, Math.floor(Math.min(...logs) - 0.1));
  const high = Math.max(0, Math.ceil(Math.max(...logs) + 0.1));
  const [left, right, top, bottom] = [44, width - 10, 20 + FLAG * marks.length, height - 44];
  scale = { low, high, left, right, width };
  const x = (log) => left + ((log - low) / (high - low)) * (right - left);
  const y = (share) => bottom - share * (bottom - top);
  const parts = [`<path class="zone" d="M${x(low)} ${top}H${x(logs[2]).toFixed(1)}V${bottom}H${x(low)}Z"/>`];
  for (const share of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    parts.push(`<line class="grid" x1="${left}" x2="${right}" y1="${y(share)}" y2="${y(share)}"/>`);
    parts.push(`<text class="tick" text-anchor="end" x="${left - 6}" y="${y(share) + 4}">${percent(share)}</text>`);
  }
  const every = Math.ceil((high - low + 1) / (width > 600 ? 9 : 6));
  for (let power = low; power <= high; power += every) {
    parts.push(`<line class="axis" x1="${x(power)}" x2="${x(power)}" y1="${bottom}" y2="${bottom + 4}"/>`);
    parts.push(`<text class="tick" text-anchor="middle" x="${x(power)}" y="${bottom + 17}">${short(10 ** power)}</text>`);
  }
  parts.push(`<line class="axis" x1="${left}" x2="${right}" y1="${bottom}" y2="${bottom}"/>`);
  parts.push(`<text class="tick" text-anchor="middle" x="${(left + right) / 2}" y="${bottom + 34}">learning rate</text>`);
  const points = range(141, (i) => low + ((high - low) * i) / 140);
  const ends = points.map((log) => said.interval(10 ** log));
  const through = (values) => values.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L");
  const upper = points.map((log, i) => [x(log), y(ends[i][1])]);
  const lower = points.map((log, i) => [x(log), y(ends[i][0])]).reverse();
  parts.push(`<path class="band" d="M${through([...upper, ...lower])}Z"/>`);
  parts.push(`<line class="bar" x1="${left}" x2="${right}" y1="${y(BAR)}" y2="${y(BAR)}"/>`);
  parts.push(`<text class="tick clear" x="${left + 6}" y="${y(BAR) - 5}">bar ${percent(BAR)}</text>`);
  parts.push(`<path class="curve" d="M${through(points.map((log) => [x(log), y(said.failed(10 ** log))]))}"/>`);
  parts.push(...flags(marks.map(([name, css, value], i) => [`${name} ${short(value, 2)}`, css, x(logs[i])]), right, bottom));
  parts.push(`<circle class="here" r="5" cx="${x(logs[1])}" cy="${y(said.chance)}"/>`);
  at("curve").innerHTML = `<svg class="plot" viewBox="0 0 ${width} ${height}" role="img" aria-label="P(failed) by learning rate, with its interval">${parts.join("")}</svg>`;
}

// Labels next to the tops of their lines, one row each, as `svg.flags` places them.
function flags(marks, last, bottom) {
  const [left, right] = [[], []];
  let end = last;
  for (const mark of [...marks].sort((a, b) => b[2] - a[2])) {
    const wide = 6 + 7.6 * mark[0].length;
    if (mark[2] + wide > end && mark[2] - wide > 0) {
      left.push(mark);
      end = mark[2];
    } else right.push(mark);
  }
  const rows = [...left, ...right.reverse()].map(([words, css, x], row) => {
    const y = 16 + FLAG * row;
    const [anchor, shift] = row < left.length ? ["end", -6] : ["start", 6];
    return [
      `<line class="mark ${css}" x1="${x.toFixed(1)}" x2="${x.toFixed(1)}" y1="${y - 8}" y2="${bottom}"/>`,
      `<text class="label ${css}" text-anchor="${anchor}" x="${(x + shift).toFixed(1)}" y="${y}">${words}</text>`,
    ];
  });
  return [...rows.map(([line]) => line), ...rows.map(([, label]) => label)];
}

function showReasons(contributions) {
  const told = contributions
    .filter(([, decades]) => Math.abs(decades) >= 0.05)
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const longest = Math.max(...told.map(([, decades]) => Math.abs(decades)));
  at("reasons").replaceChildren(
    ...told.map(([name, decades]) => {
      const row = document.createElement("div");
      row.className = "row";
      row.innerHTML = '<span></span><span class="bar" aria-hidden="true"><i></i></span><span class="share"></span>';
      row.children[0].textContent =
        name === "warmup" && !run.warmup_steps ? DATA.facts.no_warmup : DATA.facts.meanings[name];
      row.querySelector("i").className = decades > 0 ? "up" : "down";
      row.querySelector("i").style.setProperty("--w", `${(100 * Math.abs(decades)) / longest}%`);
      row.children[2].textContent = (decades > 0 ? "+" : "−") + Math.abs(decades).toFixed(2);
      return row;
    }),
  );
}

// The command that gives the same answer; the model's own settings are typed if they were moved.
function command() {
  const parts = [DATA.command];
  for (const [name, setting] of DATA.set) {
    if (run[name] !== DATA.settings[name]) parts.push(`--set ${setting}=${run[name]}`);
  }
  if (run.width !== DATA.settings.width) parts.push(`--set num_attention_heads=${heads(run.width)}`);
  for (const [name, flag, otherwise] of DATA.flags) {
    if (run[name] !== otherwise) parts.push(`${flag} ${plain(run[name])}`);
  }
  const own = run.norm === DATA.settings.norm ? "" : "\n# where the blocks normalize is a matter of the model type";
  return `${parts.join(" ")} --evidence config${own}`;
}

const plain = (value) => (typeof value === "number" && value < 1e-2 && value > 0 ? short(value, 6) : String(value));
// An option and its value stay on one line.
function showCommand(text) {
  const pieces = text.split(/ (?=--)/).map((piece) => {
    const whole = document.createElement("span");
    whole.className = "piece";
    whole.textContent = piece;
    return whole;
  });
  at("command").replaceChildren(...pieces.flatMap((piece, i) => (i ? [" ", piece] : [piece])));
}

const heads = (width) => [64, 32, 16, 8].map((size) => width / size).find(Number.isInteger) || 1;

function set(name, value) {
  if (!isAllowed(name, value)) return false;
  run[name] = value;
  show();
  return true;
}

function listen() {
  for (const [name, { stops }] of Object.entries(SLIDERS)) {
    at(name).max = stops.length - 1;
    at(name).addEventListener("input", () => set(name, stops[at(name).value]));
    const typed = at(`typed-${name}`);
    typed.addEventListener("input", () => {
      const value = Number(typed.value.replaceAll(",", ""));
      typed.toggleAttribute("aria-invalid", false);
      if (typed.value.trim() === "" || !set(name, value)) typed.setAttribute("aria-invalid", "true");
    });
    typed.addEventListener("blur", showKnobs);
  }
  for (const name of CHOICES) at(name).addEventListener("change", () => set(name, at(name).value));
  document.querySelector(".knobs").addEventListener("submit", (event) => event.preventDefault());
  at("to-start").addEventListener("click", () => set("learning_rate", twoDigits(answerOf(run).startHere)));
  at("reset").addEventListener("click", () => {
    run = { ...DATA.settings };
    show();
  });
  const drag = (event) => {
    if (!event.buttons) return;
    const box = at("curve").querySelector("svg").getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * scale.width;
    const share = clip((place - scale.left) / (scale.right - scale.left), 0, 1);
    set("learning_rate", twoDigits(10 ** (scale.low + share * (scale.high - scale.low))));
  };
  at("curve").addEventListener("pointerdown", drag);
  at("curve").addEventListener("pointermove", drag);
  window.addEventListener("hashchange", () => {
    if (location.hash.slice(1) === address()) return;
    fromAddress();
    show();
  });
  new ResizeObserver(show).observe(at("curve"));
}

fromAddress();
listen();
show();
