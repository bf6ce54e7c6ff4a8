"use strict";
// Vega-Lite specifications of the plots of one tensor, and the note under each.
const count = (value) => value.toLocaleString("en");
const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

const chartSpecs = (ink) => {
  const heights = (field, title, top) => ({
    field, type: "quantitative", title, axis: { format: ".2~g", tickCount: 4 },
    scale: top > 0 ? {} : { domain: [0, 1] },
  });
  return {
    profile: (one) => {
      const top = Math.max(0, ...one.most);
      const told = one.per > 1
        ? `${many(one.channels, one.noun)}, ${one.per} to a bar. Strong colour: their mean; faint: the largest of them.`
        : `${many(one.channels, one.noun)}, one bar each.`;
      return {
        note: top > 0 ? told : `${many(one.channels, one.noun)}, without an error where both sides are finite.`,
        spec: {
          data: { values: one.mean.map((mean, at) => ({
            from: at * one.per, to: Math.min(one.channels, (at + 1) * one.per), mean, most: one.most[at],
            said: one.per > 1 ? `${at * one.per} to ${Math.min(one.channels, (at + 1) * one.per) - 1}` : `${at}`,
          })) },
          encoding: {
            x: { field: "from", type: "quantitative",
              title: one.noun === "row" ? "row of the weight (output channel)" : "output channel",
              scale: { domain: [0, one.channels], nice: false }, axis: { format: "~d", grid: false, tickCount: 8 } },
            x2: { field: "to" },
            tooltip: [{ field: "said", type: "nominal", title: one.noun },
              { field: "mean", type: "quantitative", format: ".3~g" },
              ...(one.per > 1 ? [{ field: "most", type: "quantitative", title: "largest", format: ".3~g" }] : [])],
          },
          layer: ["most", "mean"].map((field) => ({
            mark: { type: "bar", color: ink(field === "most" ? "bar-most" : "bar"), binSpacing: 0 },
            encoding: { y: heights(field, one.measure, top), y2: { datum: 0 } },
          })),
        },
      };
    },
    histogram: (one) => {
      const unit = one.unit === "step" ? "steps" : "multiples of the RMS of all errors";
      const reach = -one.from;
      const beyond = one.below + one.above
        ? `Not shown: ${count(one.below)} below ${-reach}, ${count(one.above)} at ${reach} or above.`
        : `None is beyond ${-reach} to ${reach}.`;
      const hint = one.unit === "step" ? "Rounding to the nearest code fills -0.5 to 0.5. " : "";
      return {
        note: `${hint}${many(one.rows, "row")} looked at. ${beyond}`,
        spec: {
          data: { values: one.counts.map((seen, at) => ({
            from: one.from + at * one.width, to: one.from + (at + 1) * one.width, seen,
          })) },
          mark: { type: "bar", color: ink("bar"), binSpacing: 1 },
          encoding: {
            x: { field: "from", type: "quantitative", title: `error in ${unit}`,
              scale: { domain: [one.from, reach], nice: false }, axis: { grid: false } },
            x2: { field: "to" },
            y: { field: "seen", type: "quantitative", title: one.noun, axis: { format: "~s", tickCount: 4 } },
            y2: { datum: 0 },
            tooltip: [{ field: "from", type: "quantitative", format: ".3~g" },
              { field: "to", type: "quantitative", format: ".3~g" },
              { field: "seen", type: "quantitative", title: one.noun, format: "," }],
          },
        },
      };
    },
    bars: (one) => ({
      note: one.x === "code" ? "How many weights have each code." : "Of how many weights codes differ, by how many steps.",
      spec: {
        data: { values: one.bars.map(([code, seen]) => ({ code, seen })) },
        mark: { type: "bar", color: ink("bar") },
        encoding: {
          x: { field: "code", type: "ordinal", title: one.x, sort: null,
            axis: { labelAngle: 0, labelOverlap: true } },
          y: { field: "seen", type: "quantitative", title: "weights", axis: { format: "~s", tickCount: 4 } },
          tooltip: [{ field: "code", type: "ordinal", title: one.x },
            { field: "seen", type: "quantitative", title: "weights", format: "," }],
        },
      },
    }),
  };
};
