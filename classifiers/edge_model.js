// The model of the edge in JavaScript, for the playground: what `edge_inputs.py` makes of a run, and
// what `edge_model.py` and `rates.py` say of it. It is generic in the columns:
// the lines of the artifact decide which of them count. tests/report/test_playground.py holds it
// against Python in a browser, so that neither can change alone. Names in capitals are constants of
// Python's modules, which `rksp.report.playground` puts before it.

// The normal distribution. The series has no cancellation: all of its terms are positive.
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n += 1) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

const cdf = (x) => 0.5 * (1 + erf(x / Math.SQRT2));

// Newton's method climbs to the root from the median without passing it.
function inverseCdf(share) {
  let x = 0;
  for (let i = 0; i < 100; i += 1) {
    const step = ((share - cdf(x)) * Math.sqrt(2 * Math.PI)) / Math.exp((-x * x) / 2);
    x += step;
    if (Math.abs(step) < 1e-15 * (1 + Math.abs(x))) break;
  }
  return x;
}

const QUANTILES = Array.from({ length: 21 }, (_, i) => inverseCdf((i + 0.5) / 21));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const clip = (value, low, high) => Math.min(high, Math.max(low, value));

function interpolate(x, knots, values) {
  const right = knots.findIndex((knot) => knot > x);
  if (right <= 0) return values.at(right);
  const left = right - 1;
  const slope = (values[right] - values[left]) / (knots[right] - knots[left]);
  return values[left] + slope * (x - knots[left]);
}

// The recipe: `Recipe.share_after_warmup` and `Recipe.late_share`.
function shareAfterWarmup(run, step) {
  const least = run.min_lr_ratio;
  const elapsed = step - run.warmup_steps;
  if (run.schedule === "constant") return 1;
  if (run.schedule === "step") {
    const passed = run.decay_milestones.filter((milestone) => step >= milestone).length;
    return Math.max(least, run.decay_factor ** passed);
  }
  if (run.schedule === "inverse_sqrt") {
    const scale = run.decay_steps || Math.max(1, run.warmup_steps);
    return Math.max(least, Math.sqrt(scale / (scale + elapsed)));
  }
  let done;
  if (run.schedule === "wsd") {
    const span = run.decay_steps || Math.max(1, Math.floor(run.max_steps / 10));
    done = 1 - (run.max_steps - step) / span;
  } else {
    done = elapsed / (run.decay_steps || Math.max(1, run.max_steps - run.warmup_steps));
  }
  done = clip(done, 0, 1);
  const shape = run.schedule === "wsd" ? run.decay_shape : run.schedule;
  if (shape === "exponential") return least ? least ** done : Math.exp(-done);
  const falls = {
    linear: 1 - done,
    cosine: 0.5 * (1 + Math.cos(Math.PI * done)),
    sqrt: 1 - Math.sqrt(done),
    polynomial: (1 - done) ** run.decay_power,
  };
  return least + (1 - least) * falls[shape];
}

function lateShare(run) {
  const span = Math.max(run.max_steps - run.warmup_steps, run.max_steps / 2) * 0.1;
  const count = Math.min(Math.ceil(span), 1000);
  const reached = run.warmup_steps ? Math.min(1, run.max_steps / run.warmup_steps) : 1;
  let sum = 0;
  for (let i = 0; i < count; i += 1) {
    const step = run.max_steps - (span * (i + 0.5)) / count;
    sum += step < run.warmup_steps ? step / run.warmup_steps : shareAfterWarmup(run, step);
  }
  return sum / count / reached;
}

const between = (value, low, high) => clip(Math.log(value / low) / Math.log(high / low), 0, 1);
const horizonShare = (steps) => between(steps, SHORT, LONG);
const tokensOf = (run) => run.batch_size * run.sequence_length;

// `EdgeInputs.climbing`, `lack_of_tokens` and `narrowness`, and the column of the noise.
const climbing = (run) => clip((2 * run.warmup_steps) / run.max_steps - 1, 0, 1);

const lackOfTokens = (run) =>
  between(run.max_steps, ...LATE) * Math.max(0, Math.log10(SMALL_BATCH / tokensOf(run)));

function noise(run) {
  const steps = run.max_steps;
  const costliest = Math.min(Math.sqrt((LARGE_BATCH * SEEN[0]) / steps), SEEN[1] / steps);
  const batch = Math.min(Math.max(tokensOf(run), costliest, SMALL_BATCH), LARGE_BATCH);
  return between(batch * steps, ...SEEN) * Math.log10(batch / LARGE_BATCH);
}

function narrowness(run) {
  const narrowest = 32 * (256 / 32) ** horizonShare(run.max_steps);
  return Math.max(0, Math.log10(narrowest / run.width));
}

// `EdgeInputs.peak_share`, with `matched_rate`.
function peakShare(run, optimizers) {
  const share = run.warmup_steps ? Math.min(1, run.max_steps / run.warmup_steps) : 1;
  const scale = run.optimizer === "muon" ? run.muon_scale : "original";
  if (!optimizers[run.optimizer].has_scales || scale === "match_rms_adamw") return share;
  return share / (0.2 * (scale === "original" ? Math.sqrt(run.width) : 1));
}

// `EdgeInputs.is_usual`, and `rates.sharpened`.
const isUsual = (run, optimizers) =>
  optimizers[run.optimizer].is_adam_kin && run.norm !== "none" && run.predicts_next;

function sharpened(share, sharpness) {
  if (share >= 0.5 || sharpness === 1) return share;
  const [less, more] = [share ** sharpness, (1 - share) ** sharpness];
  return less / (less + more);
}

const kindShare = (run) => 1 - (1 - KEPT) * horizonShare(run.max_steps);

function largeInit(run) {
  const width = Math.log10(run.width) + narrowness(run);
  return run.init_std ? Math.max(0, Math.log10(run.init_std * Math.sqrt(2.5)) + width / 2) : 0;
}

// `config_features`. What was not measured stands at what the configuration lets expect: at zero.
function featuresOf(run, optimizers, measured) {
  const spec = optimizers[run.optimizer];
  const steps = run.max_steps;
  const batch = tokensOf(run);
  const late = lateShare(run);
  const width = Math.log10(run.width) + narrowness(run);
  const textSeen = between(batch * steps, ...SEEN);
  const warmed = spec.has_memories ? Math.min(run.warmup_steps, LONGEST_WARMUP) : UNWARMED_STEPS;
  const warmup = Math.min(warmed, steps / 2);
  const first = spec.has_memories ? -Math.log10(1 - run.adam_beta1) : null;
  const second = spec.has_memories ? -Math.log10(1 - run.adam_beta2) : null;
  const looksAhead = first !== null && spec.looks_ahead;
  const lasting = Math.log10(Math.max(steps, FEW_STEPS) / FEW_STEPS);
  const features = {
    width,
    depth: Math.log10(run.depth),
    warmup: Math.log10(FIRST_STEPS + warmup),
    undecayed: Math.log10(Math.max(late, DECAYED)),
    late_share: late ** 2,
    climbing: climbing(run),
    length: horizonShare(steps),
    batch_tokens: Math.log10(Math.min(batch, TOY_BATCH)),
    large_batch: Math.log10(clip(batch, TOY_BATCH, CRITICAL_BATCH) / TOY_BATCH),
    vocabulary: Math.log10(Math.min(run.vocabulary, 1024)),
    post_norm: Number(run.norm === "post"),
    post_norm_depth: run.norm === "post" ? Math.log10(run.depth / DEPTH) : 0,
    no_norm: Number(run.norm === "none"),
    no_norm_depth: run.norm === "none" ? Math.log10(run.depth / DEPTH) : 0,
    short_memory: looksAhead ? Math.max(0, SHORT_MEMORY - first) * lasting : 0,
    long_memory: first !== null ? Math.max(0, first - LONG_MEMORY) : 0,
    memory_excess: first !== null ? Math.max(0, first - second) : 0,
    parallel: kindShare(run) * run.is_parallel,
    branch_norm: kindShare(run) * run.normalizes_branches,
    large_init: (1 - horizonShare(steps)) * largeInit(run),
    other_objective: textSeen * (!run.predicts_next && !run.masks),
    masked: horizonShare(steps) * run.masks,
    qk_norm: textSeen * run.normalizes_qk,
    small_batch: -lackOfTokens(run),
    noise: noise(run),
    matched_width: horizonShare(steps) * (spec.has_scales ? width - Math.log10(MUON_WIDTH) : 0),
    made_up: 0,
  };
  for (const [name, other] of Object.entries(optimizers)) {
    if (other.column) features[name] = Number(spec.counts_as === name);
  }
  for (const name of measured) features[name] = 0;
  return features;
}

function contributionsOf(line, features) {
  return Object.entries(line.weights).map(([name, weight]) => [
    name,
    weight * (features[name] - line.centers[name]),
  ]);
}

const lineAt = (line, features) =>
  line.intercept + contributionsOf(line, features).reduce((sum, [, part]) => sum + part, 0);

// A mixture of normal distributions of the logarithm of a rate.
function rateMixture(location, within, between, weights) {
  const parts = between.map((b) => ({ between: b, spread: Math.hypot(within, b) }));
  const widest = Math.max(...parts.map((part) => part.spread));
  const average = (of) => parts.reduce((sum, part, i) => sum + weights[i] * of(part), 0);
  const solve = (share, spreadOf) => {
    if (share === 0.5) return location;
    const reach = 1e-9 + widest * Math.abs(inverseCdf(share));
    let [low, high] = [location - reach, location + reach];
    for (let i = 0; i < HALVINGS; i += 1) {
      const middle = (low + high) / 2;
      const below = average((part) => cdf((middle - location) / spreadOf(part)));
      if (below < share) low = middle;
      else high = middle;
    }
    return (low + high) / 2;
  };
  return {
    location,
    within,
    average,
    below: (log) => average((part) => cdf((log - location) / part.spread)),
    quantile: (share) => solve(share, (part) => part.spread),
    source: (share) => solve(share, (part) => Math.max(part.between, 1e-9)),
  };
}

// `Kinds`: the offset of the family, and the standard deviations that are added between sources.
function offsetOf(kinds, run, of) {
  const known = kinds.families[run.family];
  return known ? kindShare(run) * known.mean[of] : 0;
}

function wideningsOf(model, run, facts, features, outside, of) {
  const { families, unlike } = model.kinds;
  const share = kindShare(run);
  const known = families[run.family];
  const found = [];
  if (known) found.push(share * known.deviation[of]);
  else if (unlike.family) found.push(share * unlike.family[of]);
  const shown = (name) => (model[of].weights[name] || 0) * features[name];
  const kind = KINDS.reduce((sum, name) => sum + shown(name), offsetOf(model.kinds, run, of));
  found.push(((1 - share) / share) * Math.abs(kind));
  const objective = unlike[run.masks ? "masked" : "task"];
  if (!run.predicts_next && objective) found.push(horizonShare(run.max_steps) * objective[of]);
  if (!facts.optimizers[run.optimizer].is_adam_kin && unlike.optimizer) {
    found.push(unlike.optimizer[of]);
  }
  for (const [name, over] of outside) if (IN_DECADES.includes(name)) found.push(BEYOND * over);
  found.push(BEYOND * climbing(run), BEYOND * lackOfTokens(run));
  return found;
}

// `EdgeModel.predict` and `EdgeEstimate`, with the reasons of `rksp.assessment.risk.beyond`.
function predict(model, run, facts) {
  const features = featuresOf(run, facts.optimizers, Object.keys(model.expected));
  const unreached = -Math.log10(peakShare(run, facts.optimizers));
  const long = horizonShare(run.max_steps);
  const outside = Object.entries(model.ranges)
    .map(([name, [low, high]]) => [name, Math.max(low - features[name], features[name] - high)])
    .filter(([, over]) => over > 1e-9)
    .map(([name, over]) => [name, Number(over.toFixed(4))]);
  const narrow = narrowness(run); // no spread is wider for it
  const named = narrow > 0 ? [...outside.filter(([n]) => n !== "width"), ["width", narrow]] : outside;
  const mix = (short, far) => (1 - long) * short + long * far;
  const blend = (of) => of(model.short).map((short, i) => mix(short, of(model.long)[i]));
  const around = (location, name) => {
    const within = mix(model.short[name].within, model.long[name].within);
    const more = wideningsOf(model, run, facts, features, outside, name);
    const between = blend((h) => h[name].between).map((b) => Math.hypot(b, ...more));
    const moved = location + offsetOf(model.kinds, run, name) + unreached;
    return rateMixture(moved, within, between, model.weights);
  };
  const edge = around(lineAt(model.edge, features), "edge");
  const best = around(lineAt(model.best, features), "best");
  const [below, above] = [blend((h) => h.below), blend((h) => h.above)];
  const lost = (off, spread, curve) =>
    mean(QUANTILES.map((q) => interpolate(off - spread * q, model.knots, curve)));
  const excess = (log) =>
    best.average((part) => lost(log - best.location, part.spread, below)) +
    edge.average((part) => lost(log - edge.location, part.spread, above));
  const lapsing = (chance, share) => share + (1 - 2 * share) * chance;
  const sharpness = isUsual(run, facts.optimizers) ? model.sharpness : 1;
  const failed = (rate) =>
    lapsing(sharpened(edge.below(Math.log10(rate)), sharpness), model.lapse.share);
  const rateAt = (probability) => {
    const chance = 0.5 + (probability - 0.5) / (1 - 2 * model.lapse.share);
    const share = sharpened(clip(chance, RAREST, 1 - RAREST), 1 / sharpness);
    return 10 ** edge.quantile(share);
  };
  const [highest, lowest] = [edge.source(1 - TAIL), edge.source(TAIL)];
  const interval = (rate) => {
    const log = Math.log10(rate);
    const [low, high] = [highest, lowest].map((at) => cdf((log - at) / edge.within));
    const point = failed(rate);
    return [
      Math.min(lapsing(low, model.lapse.low), lapsing(low, model.lapse.high), point),
      Math.max(lapsing(high, model.lapse.low), lapsing(high, model.lapse.high), point),
    ];
  };
  return {
    startHere: startHere(best.location, excess),
    likelyEdge: rateAt(0.5),
    doNotExceed: rateAt(DEFAULT_RISK),
    failed,
    interval,
    expectedExcess: (rate) => excess(Math.log10(rate)),
    contributions: [
      ...contributionsOf(model.edge, features).filter(([name]) => features[name]),
      ["family", offsetOf(model.kinds, run, "edge")],
    ],
    reasons: reasonsOf(named, run, facts),
  };
}

// The rate of the least expected loss; numpy's steps are these, to the last digit.
function startHere(logBest, excess) {
  const step = -2.5 + 0.025 - -2.5;
  let [least, at] = [Infinity, logBest];
  for (let i = 0; i < 141; i += 1) {
    const log = logBest + (-2.5 + i * step);
    const lost = excess(log);
    if (lost < least) [least, at] = [lost, log];
  }
  return 10 ** at;
}

// As Python formats with `.3g`: 4.2, 316, 1.5e+03.
function threeDigits(value) {
  const [digits, power] = value.toPrecision(3).split("e");
  const shown = String(Number(digits));
  return power === undefined ? shown : `${shown}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

function reasonsOf(outside, run, facts) {
  const found = outside
    .filter(([name, over]) => over > FAR && !facts.optimizers[name])
    .map(([name, over]) => {
      const factor = threeDigits(10 ** over);
      return `${facts.meanings[name]} lies a factor of ${factor} beyond the labelled runs`;
    });
  if (run.norm === "none" && run.max_steps > LONG_STEPS) {
    found.push(
      "the blocks have no normalization, and all labelled runs without it but one sweep are " +
        `shorter than ${LONG_STEPS} steps`,
    );
  }
  return found;
}

// `rksp.assessment.risk.open_at`; `edge` as pages print it.
function openAt(low, high, edge) {
  if (!(low < SURE && high > 1 - SURE)) return [];
  return [
    `teams differ by more than this learning rate lies from the likely edge, ${edge}: in some of ` +
      "them nearly all such runs fail, in others hardly any",
  ];
}

// `rounded_down`, and `word_at`: ok up to X as it is printed, caution from there, risk from the bar on.
function roundedDown(rate) {
  const step = 10 ** (Math.floor(Math.log10(rate)) - 1);
  return Number((Math.floor((rate / step) * (1 + 1e-12)) * step).toPrecision(2));
}

function wordAt(bar, failed, rate, ceiling) {
  if (failed >= bar) return "risk";
  return rate > roundedDown(ceiling) ? "caution" : "ok";
}
